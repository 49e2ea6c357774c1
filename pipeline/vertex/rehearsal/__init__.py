"""Run a compiled PipelineJob on this machine as Vertex AI would."""
