"""Optional accelerators: each file replaces one executor by a faster one with equal results.

Only this package patches TFX, Beam, TFMA, TFDV and tf.Transform or calls their private API. Without it
(``Target(engine="stock")``, ``--engine stock``) the same graph runs on the executors in ``pipeline.components``, which
use TFX's own, and one step at a time. docs/decisions/0035-the-fast-engine.md has the gains and the equality tests,
docs/decisions/0016-private-api.md the private names.
"""
