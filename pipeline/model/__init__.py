"""The model contract between training, checks, predictions and the server."""
