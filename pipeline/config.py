"""Names that a file in ``configs/`` imports; they are defined and documented in ``pipeline.settings``."""

from pipeline.settings.config import Data as Data
from pipeline.settings.config import HashSplit as HashSplit
from pipeline.settings.config import Label as Label
from pipeline.settings.config import PipelineConfig as PipelineConfig
from pipeline.settings.config import TimeSplit as TimeSplit
from pipeline.settings.config import Tuning as Tuning
from pipeline.settings.endpoint import Canary as Canary
from pipeline.settings.endpoint import Endpoint as Endpoint
from pipeline.settings.gates import AtLeast as AtLeast
from pipeline.settings.gates import BeatsBaseline as BeatsBaseline
from pipeline.settings.gates import Costs as Costs
from pipeline.settings.gates import DataChecks as DataChecks
from pipeline.settings.gates import Evaluation as Evaluation
from pipeline.settings.gates import FairnessGate as FairnessGate
from pipeline.settings.gates import Gate as Gate
from pipeline.settings.gates import ModelChecks as ModelChecks
from pipeline.settings.gates import SliceGate as SliceGate
from pipeline.settings.image_data import Images as Images
from pipeline.settings.machines import Job as Job
from pipeline.settings.machines import Machines as Machines
from pipeline.settings.machines import Resources as Resources
from pipeline.settings.training import Training as Training
