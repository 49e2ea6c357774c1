"""Serve pushed models over HTTP and gRPC, without TFX and without a cloud."""
