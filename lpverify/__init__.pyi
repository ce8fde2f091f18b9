from lpverify.auditing.audit import audit as audit
from lpverify.core import families
from lpverify.core.draft_tree import DraftTree as DraftTree
from lpverify.core.model_pair import ModelPair as ModelPair
from lpverify.core.problem import VerifyProblem as VerifyProblem
from lpverify.core.problem import as_problem as as_problem
from lpverify.core.problem import examples as examples
from lpverify.core.problem import load_problem as load_problem
from lpverify.core.problem import save_problem as save_problem
from lpverify.core.results import AuditReport as AuditReport
from lpverify.core.results import Certificate as Certificate
from lpverify.core.results import Evaluation as Evaluation
from lpverify.core.results import LpSolution as LpSolution
from lpverify.core.results import RankTable as RankTable
from lpverify.errors import InputError as InputError
from lpverify.errors import SizeError as SizeError
from lpverify.exact.breakdown import balance as balance
from lpverify.exact.closed_form import block_efficiency as block_efficiency
from lpverify.exact.compare import compare as compare
from lpverify.exact.evaluate import evaluate as evaluate
from lpverify.integrations.engines import adapt as adapt
from lpverify.lp import certify as certify
from lpverify.lp import cvx as cvx
from lpverify.lp.solve import solve as solve
from lpverify.report import plots as plots
from lpverify.report import tables as tables
from lpverify.studies.session import open_pair as open_pair
from lpverify.testing import assert_lossless as assert_lossless
from lpverify.verifiers import verifier as verifier
from lpverify.verifiers.base import StopDistribution as StopDistribution
from lpverify.verifiers.base import Verifier as Verifier
from lpverify.verifiers.sample import sample as sample

make = families

__version__: str
