"""Weights that do not fit the card, streamed to it ahead of their use."""

from vramkit.weights.giving_way import GivingWayStats as GivingWayStats
from vramkit.weights.layout import BudgetError as BudgetError
from vramkit.weights.layout import Group as Group
from vramkit.weights.layout import Layout as Layout
from vramkit.weights.layout import plan_layout as plan_layout
from vramkit.weights.manager import WeightManager as WeightManager
from vramkit.weights.manager import WeightStats as WeightStats
from vramkit.weights.model import UnsupportedModel as UnsupportedModel
from vramkit.weights.offloading import Offload as Offload
from vramkit.weights.offloading import offload as offload
from vramkit.weights.packing import Packing as Packing
from vramkit.weights.planner import ModelError as ModelError
from vramkit.weights.planner import Plan as Plan
from vramkit.weights.planner import Prediction as Prediction
from vramkit.weights.planner import Refused as Refused
from vramkit.weights.planner import plan as plan
from vramkit.weights.schedule import POLICIES as POLICIES
from vramkit.weights.schedule import Policy as Policy
from vramkit.weights.schedule import Schedule as Schedule
from vramkit.weights.schedule import make_schedule as make_schedule
from vramkit.weights.slab import Slab as Slab
from vramkit.weights.team import RankError as RankError
