"""Make a pipeline from a table or images: infer the columns, and write config, module file and schema."""
