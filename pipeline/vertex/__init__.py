"""What only Vertex AI needs: settings, compiling, preflight, submitting, waiting, rehearsal."""
