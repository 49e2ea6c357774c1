"""Compile, check, submit, watch and schedule a PipelineJob."""
