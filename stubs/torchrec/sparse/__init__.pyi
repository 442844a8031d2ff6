from torchrec.sparse.jagged_tensor import (
    JaggedTensor as JaggedTensor,
    KeyedJaggedTensor as KeyedJaggedTensor,
)
