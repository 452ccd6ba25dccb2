"""CUDA C++ kernels of the decode path, compiled at run time with NVRTC: no user needs nvcc.

Writing one:

- `ROOM/NAME.cu` includes .cuh files of this folder and its rooms, and nothing else; common.cuh and wgmma.cuh alone have
  inline assembly. All others keep to their names and CUDA's own intrinsics (`__syncthreads`, `__shfl_*_sync`, atomics,
  math functions): the same text then runs on a CPU in tests/kernels/cuda/emulator. What common.cuh lacks goes there,
  for the device and for the emulator.
- Kernels are `extern "C" __global__ void NAME(...)`; their parameters are pointers, i32 / i64 and float. Shapes that
  the code needs at compile time are `defines` (`compiler.load("dense/linear", {"DEPTH": 8, ...})`): few, since each set
  compiles.
- Programmatic dependent launch: weights may be loaded before `pdl_wait()`; all that another kernel of the chain writes
  is read and written after it. Every kernel calls `pdl_wait()` before it ends, also on paths that do nothing, and
  `pdl_trigger()` once its successor may start to occupy the multiprocessors.
- A row's bits must not depend on the other rows of the launch: fixed order of additions, no floating-point atomics,
  borders of slices from the matrix's shape alone (`arrive_last` adds partial sums in index order, never by arrival).
- `NAME.py` checks shapes, allocates outputs, and calls `load(...).kernel(...).launch(...)`: no synchronisation and no
  read of device data, so that it can be captured in a CUDA graph.
- Tests: against the plain PyTorch twin in the emulator, and a row in tests/kernels/cuda/test_offline.py, which compiles
  the shipped defines for every GPU generation and looks for register spills.
"""
