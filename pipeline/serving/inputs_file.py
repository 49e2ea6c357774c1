"""Where a model says what it takes, between the one who exports it and those who ask it.

``{"carrier": {"type": "text", "required": true}, ...}``, of every raw feature without the label; types are integers,
floats and text.
"""

# In the folder of a SavedModel: where its format has room for what is not TensorFlow's.
INPUTS = "assets.extra/inputs.json"
