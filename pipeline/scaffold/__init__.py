"""From somebody's data to a pipeline of its own: looks at the columns, and writes config, module file and schema."""
