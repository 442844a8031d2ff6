from torchrec.sparse.jagged_tensor import (
    JaggedTensor as JaggedTensor,
    KeyedJaggedTensor as KeyedJaggedTensor,
    KeyedTensor as KeyedTensor,
)
from torchrec.streamable import (
    Multistreamable as Multistreamable,
    Pipelineable as Pipelineable,
)

__version__: str
