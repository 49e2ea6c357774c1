"""Run the Trainer and the Tuner as jobs of Vertex AI."""
