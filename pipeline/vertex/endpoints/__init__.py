"""Model registry, endpoints, canary roll-outs, batch prediction and monitoring."""
