"""Predicts what streaming a model's weights costs on a card that need not be there."""

from vramkit.weights.planner.planning import DEFAULT_BUDGET as DEFAULT_BUDGET
from vramkit.weights.planner.planning import plan as plan
from vramkit.weights.planner.result import Plan as Plan
from vramkit.weights.planner.result import Prediction as Prediction
from vramkit.weights.planner.result import Refused as Refused
from vramkit.weights.planner.shape import ModelError as ModelError
