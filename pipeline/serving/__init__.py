"""Serve pushed models over HTTP and gRPC.

Needs neither TFX nor a cloud.
"""
