"""How long one kernel takes: a pure function for each family, its time split by cause.

Everything fitted is dimensionless or a time, so a what-if swaps a chip's datasheet numbers and nothing else.
"""

from .allreduce import AllReduceParams as AllReduceParams
from .allreduce import allreduce_seconds as allreduce_seconds
from .allreduce import allreduce_time as allreduce_time
from .decode_attention import DecodeParams as DecodeParams
from .decode_attention import decode_shape as decode_shape
from .decode_attention import decode_terms as decode_terms
from .elementwise import ElementwiseParams as ElementwiseParams
from .elementwise import elementwise_time as elementwise_time
from .form import CAUSES as CAUSES
from .form import Chip as Chip
from .form import KernelTime as KernelTime
from .gemm import GemmParams as GemmParams
from .gemm import GemmWidths as GemmWidths
from .gemm import gemm_time as gemm_time
from .linear import LinearParams as LinearParams
from .linear import linear_time as linear_time
from .moe import MoEParams as MoEParams
from .moe import MoEWork as MoEWork
from .moe import moe_time as moe_time
from .prefill_attention import PrefillParams as PrefillParams
from .prefill_attention import prefill_form as prefill_form
from .prefill_attention import prefill_shape as prefill_shape
