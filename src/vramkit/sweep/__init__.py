"""Runs many independent tasks: in processes of this machine, or wherever a Place puts them."""

from vramkit.sweep.again import Again as Again
from vramkit.sweep.place import Place as Place
from vramkit.sweep.place import PlaceError as PlaceError
from vramkit.sweep.step import Step as Step
from vramkit.sweep.stopping import Stopped as Stopped
from vramkit.sweep.stopping import Stopping as Stopping
from vramkit.sweep.tasks import Batch as Batch
from vramkit.sweep.tasks import Done as Done
from vramkit.sweep.tasks import Failed as Failed
from vramkit.sweep.tasks import Task as Task
from vramkit.sweep.tasks import batches as batches
