// The loops of a transfer, compiled: leaves -> pinned rows -> device buffers -> leaves.
// There is no CUDA code here: streams, events and memory come through torch's own seams,
// so the same file runs with any build of torch, and in CI without a device.
//
// Note [what is taken]
// Only a leaf that is its bytes and nothing else is read here: a `Tensor` itself, strided,
// on the host, without a gradient, a tangent or a transform. All but class, gradient and
// tangent shows in the dispatch keys, which are compared whole: what a later torch adds is
// not taken for plain. All else is Python's, and every call in a mode that sees operations.
//
// Note [what may change meanwhile]
// Pinned rows come from Python, and device memory may be asked for without the GIL.
// Another thread may then resize a leaf. So what has been measured is measured again,
// with the GIL held, where the bytes are read; a difference is an error.
#include <cstring>
#include <optional>
#include <vector>

#include <ATen/EmptyTensor.h>
#include <ATen/ExpandUtils.h>
#include <ATen/PythonTorchFunctionTLS.h>
#include <ATen/core/Tensor.h>
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/csrc/Device.h>
#include <torch/csrc/Event.h>
#include <torch/csrc/Exceptions.h>
#include <torch/csrc/PyInterpreter.h>
#include <torch/csrc/autograd/forward_grad.h>
#include <torch/csrc/autograd/python_variable.h>

namespace {

constexpr int64_t kAlignment = 256, kLargestPack = 4 << 20, kSmallestRow = 4 << 10;

// Releases the GIL for a scope.
struct WithoutGil {
  PyThreadState* state = PyEval_SaveThread();
  ~WithoutGil() { PyEval_RestoreThread(state); }
};

// Owns a reference.
struct Ref {
  PyObject* object;
  explicit Ref(PyObject* object) : object(object) {
    if (object == nullptr) throw python_error();
  }
  Ref(const Ref&) = delete;
  ~Ref() { Py_XDECREF(object); }
  PyObject* shared() const { return Py_NewRef(object); }
};

c10::DispatchKeySet keys_of_a_plain_tensor(bool inference) {
  c10::InferenceMode guard(inference);
  c10::Storage none(c10::Storage::use_byte_size_t(), 0, at::DataPtr(), nullptr, false);
  return at::detail::make_tensor<c10::TensorImpl>(
             std::move(none), c10::DispatchKeySet(c10::DispatchKey::CPU),
             caffe2::TypeMeta::Make<float>())
      .key_set();
}

bool are_plain(c10::DispatchKeySet keys) {
  static const auto usual = keys_of_a_plain_tensor(false);
  static const auto inference = keys_of_a_plain_tensor(true);
  return keys == usual || keys == inference;
}

PyObject* device_context = nullptr;  // the mode of `torch.set_default_device`

// Returns whether nothing wants to see each operation: no mode of dispatch, functions or
// fake tensors, no transform, no tracer, no forward-mode autograd.
bool undisturbed() {
  constexpr auto usual = c10::default_included_set;
  const auto included = c10::impl::tls_local_dispatch_key_set().included_;
  if (included != usual && included != usual.remove(c10::DispatchKey::ADInplaceOrView))
    return false;
  const auto modes = at::impl::PythonTorchFunctionTLS::stack_len();
  for (int64_t i = 0; i < modes; i++) {
    const auto& mode = at::impl::PythonTorchFunctionTLS::get_stack_at(i);
    // A default device says nothing about a call that names its device.
    if ((PyObject*)Py_TYPE(mode->ptr(getPyInterpreter())) != device_context) return false;
  }
  return torch::autograd::ForwardADLevel::try_get_by_idx(0) == nullptr;
}

// A leaf as it is now; without a tensor where it may not be read here.
struct Leaf {
  const at::Tensor* tensor = nullptr;
  const char* bytes = "";
  int64_t nbytes = 0;
  bool linear = false;  // its items lie side by side and mean what they say
};

Leaf read(PyObject* object) {
  Leaf leaf;
  if ((PyObject*)Py_TYPE(object) != THPVariableClass) return leaf;
  const at::Tensor& t = THPVariable_Unpack(object);
  const auto found = t.key_set();
  const auto keys =
      found.remove(c10::DispatchKey::Conjugate).remove(c10::DispatchKey::Negative);
  if (!are_plain(keys) || t.requires_grad()) return leaf;
  leaf.nbytes = t.numel() * t.element_size();
  leaf.linear = found == keys && t.is_non_overlapping_and_dense();
  if (leaf.nbytes != 0) {
    const auto* start = (const char*)t.storage().data();
    const auto needed = at::detail::computeStorageNbytes(t.sizes(), t.strides(), t.itemsize(),
                                                         t.storage_offset());
    if (start == nullptr || needed > t.storage().nbytes()) return leaf;  // it was freed
    leaf.bytes = start + t.storage_offset() * t.element_size();
  }
  leaf.tensor = &t;
  return leaf;
}

// The strides that `Tensor.to` gives: its own if it is dense.
c10::SmallVector<int64_t, 5> strides_of_copy(const at::Tensor& t) {
  if (t.is_non_overlapping_and_dense()) return {t.strides().begin(), t.strides().end()};
  const auto dense = at::infer_dense_strides(t.sizes(), t.strides());
  return {dense.begin(), dense.end()};
}

// Makes a tensor in a part of a row of bytes: no view of another, with a version counter
// of its own, and an inference tensor exactly where `Tensor.to` would make one.
at::Tensor cut(const at::Tensor& row, int64_t offset, at::IntArrayRef sizes,
               at::IntArrayRef strides, caffe2::TypeMeta dtype) {
  auto made = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(row.storage()),
                                                       row.key_set(), dtype);
  const auto start = (row.storage_offset() + offset) / (int64_t)dtype.itemsize();
  made.unsafeGetTensorImpl()->set_sizes_and_strides(sizes, strides, start);
  return made;
}

at::Tensor cut_like(const at::Tensor& like, const at::Tensor& row, int64_t offset) {
  return cut(row, offset, like.sizes(), strides_of_copy(like), like.dtype());
}

// Copies a leaf to its place in a pinned row.
void fill(const Leaf& leaf, const at::Tensor& row, int64_t offset) {
  if (leaf.linear) {
    std::memcpy((char*)row.data_ptr() + offset, leaf.bytes, leaf.nbytes);
    return;
  }
  at::AutoDispatchBelowADInplaceOrView guard;
  cut_like(*leaf.tensor, row, offset).copy_(*leaf.tensor);
}

struct Core {
  PyObject_HEAD
  at::Device device;
  c10::Stream stream;
  int64_t below;  // bytes under which a leaf is packed or gathered
  bool pack;
  PyObject* take;       // gives a pinned row of bytes
  PyObject* event;      // the class of events; None where there is no device
  PyObject* where;      // the device, as events are told it
  PyObject* capturing;  // tells whether the current stream captures a graph
};

// What a move gives: see there.
struct Lists {
  Ref made, rows{PyList_New(0)}, buffers{PyList_New(0)}, rest{PyList_New(0)};
  PyObject* sources;
  Lists(Py_ssize_t count, PyObject* sources) : made(PyList_New(count)), sources(sources) {
    for (Py_ssize_t i = 0; i < count; i++) PyList_SET_ITEM(made.object, i, Py_NewRef(Py_None));
  }
};

void append(PyObject* list, PyObject* object) {
  if (PyList_Append(list, object) != 0) throw python_error();
}

// What `look` tells; `native.py` has the same numbers.
constexpr long kOdd = 1, kTwice = 2, kUnseen = 4;

bool come_twice(PyObject* const* items, Py_ssize_t count) {
  size_t size = 16;
  while (size < (size_t)count * 2) size *= 2;
  c10::SmallVector<PyObject*, 128> table(size, nullptr);
  for (Py_ssize_t i = 0; i < count; i++) {
    size_t at = ((size_t)items[i] >> 4) * 0x9E3779B97F4A7C15ull >> 20 & (size - 1);
    for (; table[at] != nullptr; at = (at + 1) & (size - 1))
      if (table[at] == items[i]) return true;
    table[at] = items[i];
  }
  return false;
}

PyObject* look(PyObject*, PyObject* leaves) {
  HANDLE_TH_ERRORS
  TORCH_CHECK_TYPE(PyList_CheckExact(leaves), "the leaves must be a list");
  if (!undisturbed()) return PyLong_FromLong(kUnseen);
  const auto count = PyList_GET_SIZE(leaves);
  auto* const items = ((PyListObject*)leaves)->ob_item;
  long found = come_twice(items, count) ? kTwice : 0;
  for (Py_ssize_t i = 0; i < count && (found & kOdd) == 0; i++)
    if (read(items[i]).tensor == nullptr) found |= kOdd;
  return PyLong_FromLong(found);
  END_HANDLE_TH_ERRORS
}

// How a leaf goes to the device: through a pinned row, with others; out of its own pinned
// memory; with nothing to copy; or by Python.
enum class Way { row, direct, empty, python };

struct Step {
  Way way;
  int row;
  int64_t offset, nbytes;
};

// How all leaves go, and the bytes of each row.
struct Route {
  c10::SmallVector<Step, 32> steps;
  c10::SmallVector<int64_t, 4> rows;
  bool together;  // whether each row is one copy, and not one for each leaf

  Route(const Core& core, PyObject* const* items, Py_ssize_t count) {
    int small = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
      const auto leaf = read(items[i]);
      steps.push_back({way(core, leaf), 0, 0, leaf.nbytes});
      auto& step = steps.back();
      if (step.way != Way::row) continue;
      const auto room = (step.nbytes + kAlignment - 1) / kAlignment * kAlignment;
      if (rows.empty() || rows.back() + room > kLargestPack) rows.push_back(0);
      step.row = (int)rows.size() - 1;
      step.offset = rows.back();
      rows.back() += room;
      small++;
    }
    together = core.pack && small > 1;  // one leaf is its own buffer
  }

  static Way way(const Core& core, const Leaf& leaf) {
    if (leaf.tensor == nullptr) return Way::python;
    if (leaf.nbytes < core.below) return leaf.nbytes == 0 ? Way::empty : Way::row;
    return leaf.linear && leaf.tensor->is_pinned() ? Way::direct : Way::python;
  }
};

// Gives a pinned row of at least so many bytes. Sizes come in powers of two, as those of
// torch's own allocator do, so that a row fits the next payload as well.
at::Tensor row_of(const Core& core, int64_t nbytes, const Ref& rows) {
  int64_t size = kSmallestRow;
  while (size < nbytes) size *= 2;
  const Ref count(PyLong_FromLongLong(size));
  const Ref row(PyObject_CallOneArg(core.take, count.object));
  TORCH_CHECK_TYPE(THPVariable_Check(row.object), "a row must be a tensor");
  const auto tensor = THPVariable_Unpack(row.object);
  TORCH_CHECK_VALUE(tensor.is_contiguous() && tensor.scalar_type() == at::kByte &&
                        tensor.is_cpu() && tensor.numel() >= nbytes,
                    "a row must be ", nbytes, " bytes of host memory");
  append(rows.object, row.object);
  return tensor;
}

// Puts a new leaf into its place; one with a block of its own is recorded as a buffer.
void put(const Lists& lists, Py_ssize_t index, at::Tensor tensor, bool is_buffer) {
  Ref leaf(THPVariable_Wrap(std::move(tensor)));
  if (is_buffer) append(lists.buffers.object, leaf.object);
  if (PyList_SetItem(lists.made.object, index, leaf.shared()) != 0) throw python_error();
}

// Queues the copies on the current stream.
void queue(const Core& core, PyObject* leaves, const Lists& lists) {
  const Route route(core, ((PyListObject*)leaves)->ob_item, PyList_GET_SIZE(leaves));
  c10::SmallVector<at::Tensor, 4> hosts, packs;
  for (const auto nbytes : route.rows)
    hosts.push_back(cut(row_of(core, nbytes, lists.rows), 0, {nbytes}, {1},
                        caffe2::TypeMeta::Make<uint8_t>()));
  if (route.together) {
    const auto bytes = at::TensorOptions().dtype(at::kByte).device(core.device);
    WithoutGil free;
    for (const auto nbytes : route.rows) packs.push_back(at::empty({nbytes}, bytes));
  }
  std::vector<std::pair<Py_ssize_t, at::Tensor>> single;
  for (Py_ssize_t i = 0; i < (Py_ssize_t)route.steps.size(); i++) {
    const auto& step = route.steps[i];
    if (step.way == Way::python) {
      append(lists.rest.object, Ref(PyLong_FromSsize_t(i)).object);
      continue;
    }
    // See Note [what may change meanwhile].
    const auto leaf = i < PyList_GET_SIZE(leaves) ? read(PyList_GET_ITEM(leaves, i)) : Leaf();
    TORCH_CHECK(leaf.tensor != nullptr && leaf.nbytes == step.nbytes,
                "another thread has changed a leaf while it was copied");
    if (step.way == Way::row) fill(leaf, hosts[step.row], step.offset);
    // What the device reads where it is, is kept before anything is queued.
    if (step.way == Way::direct) append(lists.sources, PyList_GET_ITEM(leaves, i));
    if (step.way == Way::row && route.together)
      put(lists, i, cut_like(*leaf.tensor, packs[step.row], step.offset), false);
    else
      single.emplace_back(i, step.way != Way::row ? *leaf.tensor
                                 : cut_like(*leaf.tensor, hosts[step.row], step.offset));
  }
  {
    WithoutGil free;
    at::AutoDispatchBelowADInplaceOrView guard;  // as inside of `Tensor.to`
    for (size_t i = 0; i < packs.size(); i++) packs[i].copy_(hosts[i], true);
    for (auto& [index, tensor] : single) {
      // Also one without items: as the `out=` of an operation it grows, into no other.
      auto made = at::empty_strided(tensor.sizes(), strides_of_copy(tensor),
                                    tensor.options().device(core.device));
      if (tensor.numel() != 0) made.copy_(tensor, true);
      tensor = std::move(made);
    }
  }
  for (auto& [index, tensor] : single) put(lists, index, tensor, tensor.numel() != 0);
  for (auto& pack : packs)
    append(lists.buffers.object, Ref(THPVariable_Wrap(std::move(pack))).object);
}

// Queues on the copy stream what needs no Python, and an event behind it. Gives the new
// leaves, pinned rows, new buffers, indexes of the leaves that are left, and the event.
// None: the copy stream captures a graph.
PyObject* move(PyObject* self, PyObject* const* args, Py_ssize_t count) {
  HANDLE_TH_ERRORS
  const auto& core = *(Core*)self;
  TORCH_CHECK_TYPE(count == 2 && PyList_CheckExact(args[0]) && PyList_CheckExact(args[1]),
                   "`move` takes a list of leaves and a list for what is read later");
  TORCH_CHECK(undisturbed(), "a mode is active that wants to see each operation");
  std::optional<c10::StreamGuard> guard;
  if (core.event != Py_None) {
    guard.emplace(core.stream);
    const Ref captures(PyObject_CallNoArgs(core.capturing));
    if (captures.object == Py_True) Py_RETURN_NONE;
  }
  const Ref ready(core.event == Py_None ? Py_NewRef(Py_None)
                                        : PyObject_CallOneArg(core.event, core.where));
  const Lists lists(PyList_GET_SIZE(args[0]), args[1]);
  queue(core, args[0], lists);
  if (core.event != Py_None) {
    TORCH_CHECK_TYPE((PyObject*)Py_TYPE(ready.object) == core.event, "no event of torch");
    WithoutGil free;
    ((THPEvent*)ready.object)->event.record(core.stream);
  }
  return PyTuple_Pack(5, lists.made.object, lists.rows.object, lists.buffers.object,
                      lists.rest.object, ready.object);
  END_HANDLE_TH_ERRORS
}

PyObject* make(PyTypeObject* type, PyObject* args, PyObject*) {
  HANDLE_TH_ERRORS
  PyObject *device, *take, *event, *capturing;
  long long below, number;
  int pack;
  if (!PyArg_ParseTuple(args, "O!LpLOOO", &THPDeviceType, &device, &below, &pack, &number,
                        &take, &event, &capturing))
    return nullptr;
  Ref made(type->tp_alloc(type, 0));
  auto& core = *(Core*)made.object;
  core.device = ((THPDevice*)device)->device;
  core.stream = c10::Stream::unpack3(number, core.device.index(), core.device.type());
  core.below = below;
  core.pack = pack != 0;
  core.take = Py_NewRef(take), core.capturing = Py_NewRef(capturing);
  core.event = Py_NewRef(event), core.where = Py_NewRef(device);
  return made.shared();
  END_HANDLE_TH_ERRORS
}

// Nothing that it holds leads back to it, so it is no business of the cycle collector.
void destroy(PyObject* self) {
  const auto& core = *(Core*)self;
  for (auto* held : {core.take, core.event, core.where, core.capturing}) Py_XDECREF(held);
  Py_TYPE(self)->tp_free(self);
}

PyMethodDef methods[] = {
    {"look", look, METH_O, "Return what is among leaves: odd ones, doubles."},
    {"move", (PyCFunction)(void*)move, METH_FASTCALL, "Queue the copies of plain leaves."},
    {nullptr, nullptr, 0, nullptr}};

PyTypeObject core_type = {PyVarObject_HEAD_INIT(nullptr, 0)};
PyModuleDef module = {PyModuleDef_HEAD_INIT, "tensorpack_native", nullptr, -1, nullptr};

}  // namespace

PyMODINIT_FUNC PyInit_tensorpack_native() {
  HANDLE_TH_ERRORS
  core_type.tp_name = "tensorpack_native.Core";
  core_type.tp_doc = "Moves the plain leaves of payloads to one device.";
  core_type.tp_basicsize = sizeof(Core);
  core_type.tp_flags = Py_TPFLAGS_DEFAULT;
  core_type.tp_new = make;
  core_type.tp_dealloc = destroy;
  core_type.tp_methods = methods;
  const Ref devices(PyImport_ImportModule("torch.utils._device"));
  device_context = PyObject_GetAttrString(devices.object, "DeviceContext");
  if (device_context == nullptr) return nullptr;
  Ref made(PyModule_Create(&module));
  if (PyModule_AddType(made.object, &core_type) != 0) return nullptr;
  return made.shared();
  END_HANDLE_TH_ERRORS
}
