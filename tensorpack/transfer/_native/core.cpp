// The loops of a transfer, compiled: leaves -> pinned rows -> device buffers -> leaves.
//
// There is no CUDA code here: streams, events and memory are asked for through torch's
// own seams, so the same file runs with any build of torch, and in CI without a device.
//
// Note [what is taken]
// Only a leaf that is its bytes and nothing else is read here: of class `Tensor` itself,
// strided, on the host, without a gradient, a tangent or a transform around it. All but
// the gradient and the tangent show in the dispatch keys, which are compared as a whole,
// so that what a later torch adds is not taken for plain. Everything else is left to
// Python, and so is every call while a mode is active that wants to see each operation.
//
// Note [what may change meanwhile]
// Pinned rows come from Python, and device memory may be asked for without the GIL.
// Another thread may then resize a leaf. So what has been measured is measured again,
// with the GIL held, where the bytes are read; a difference is an error.
#include <cstring>
#include <optional>
#include <utility>
#include <vector>

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

constexpr int64_t kAlignment = 256;
constexpr int64_t kLargestPack = 4 << 20;
constexpr int64_t kSmallestRow = 4 << 10;

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
  PyObject* release() { return std::exchange(object, nullptr); }
  void reset(PyObject* other) {
    if (other == nullptr) throw python_error();
    Py_XSETREF(object, other);
  }
};

c10::DispatchKeySet keys_of_a_plain_tensor(bool inference) {
  c10::InferenceMode guard(inference);
  c10::Storage none(c10::Storage::use_byte_size_t(), 0, at::DataPtr(), nullptr, false);
  return at::detail::make_tensor<c10::TensorImpl>(
             std::move(none), c10::DispatchKeySet(c10::DispatchKey::CPU),
             caffe2::TypeMeta::Make<float>())
      .key_set();
}

struct Keys {
  c10::DispatchKeySet plain = keys_of_a_plain_tensor(false);
  c10::DispatchKeySet inference = keys_of_a_plain_tensor(true);
};

const Keys& keys() {
  static const Keys known;
  return known;
}

PyObject* device_context = nullptr;  // the mode of `torch.set_default_device`

// Returns whether nothing wants to see each operation: no mode of dispatch, functions or
// fake tensors, no transform, no tracer, no forward-mode autograd.
bool undisturbed() {
  const auto included = c10::impl::tls_local_dispatch_key_set().included_;
  if (included != c10::default_included_set &&
      included != c10::default_included_set.remove(c10::DispatchKey::ADInplaceOrView))
    return false;
  const auto modes = at::impl::PythonTorchFunctionTLS::stack_len();
  for (int64_t i = 0; i < modes; i++) {
    const auto& mode = at::impl::PythonTorchFunctionTLS::get_stack_at(i);
    // A default device says nothing about a call that names its device.
    if ((PyObject*)Py_TYPE(mode->ptr(getPyInterpreter())) != device_context) return false;
  }
  return torch::autograd::ForwardADLevel::try_get_by_idx(0) == nullptr;
}

// A leaf as it is now. `bytes` is null where it may not be read here.
struct Leaf {
  const at::Tensor* tensor = nullptr;
  const char* bytes = nullptr;
  int64_t nbytes = 0;
  bool linear = false;  // its items lie side by side and mean what they say
  bool plain() const { return tensor != nullptr; }
};

int64_t extent(const at::Tensor& t) {
  int64_t last = t.storage_offset();
  for (int64_t d = 0; d < t.dim(); d++) last += (t.size(d) - 1) * t.stride(d);
  return (last + 1) * t.element_size();
}

Leaf read(PyObject* object) {
  Leaf leaf;
  if ((PyObject*)Py_TYPE(object) != THPVariableClass) return leaf;
  const at::Tensor& t = THPVariable_Unpack(object);
  if (!t.defined()) return leaf;
  const auto found = t.key_set();
  auto real = found.remove(c10::DispatchKey::Conjugate);
  real = real.remove(c10::DispatchKey::Negative);
  if ((real != keys().plain && real != keys().inference) || t.requires_grad()) return leaf;
  leaf.nbytes = t.numel() * t.element_size();
  leaf.linear = found == real && t.is_non_overlapping_and_dense();
  static const char nothing = 0;
  leaf.bytes = &nothing;
  if (leaf.nbytes != 0) {
    const auto* start = (const char*)t.storage().data();
    const auto room = (int64_t)t.storage().nbytes();
    if (start == nullptr || extent(t) > room) return leaf;  // its memory was freed
    leaf.bytes = start + t.storage_offset() * t.element_size();
  }
  leaf.tensor = &t;
  return leaf;
}

// The strides that `Tensor.to` gives: its own if it is dense.
c10::SmallVector<int64_t, 5> strides_of_copy(const at::Tensor& t) {
  if (t.is_non_overlapping_and_dense())
    return {t.strides().begin(), t.strides().end()};
  const auto dense = at::infer_dense_strides(t.sizes(), t.strides());
  return {dense.begin(), dense.end()};
}

// Makes a tensor in a part of a storage: no view of another, with a version counter of
// its own, and an inference tensor exactly where `Tensor.to` would make one.
at::Tensor cut(const at::Tensor& from, int64_t offset, const at::Tensor& like) {
  auto made = at::detail::make_tensor<c10::TensorImpl>(
      c10::Storage(from.storage()), from.key_set(), like.dtype());
  made.unsafeGetTensorImpl()->set_sizes_and_strides(
      like.sizes(), strides_of_copy(like),
      (from.storage_offset() + offset) / (int64_t)like.element_size());
  return made;
}

// Copies a leaf to its place in a pinned row.
void fill(const Leaf& leaf, const at::Tensor& row, int64_t offset) {
  if (leaf.linear) {
    std::memcpy((char*)row.data_ptr() + offset, leaf.bytes, leaf.nbytes);
    return;
  }
  at::AutoDispatchBelowADInplaceOrView guard;
  cut(row, offset, *leaf.tensor).copy_(*leaf.tensor);
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
  Ref made, rows, buffers, rest;
  PyObject* sources;
};

void append(const Ref& list, PyObject* object) {
  if (PyList_Append(list.object, object) != 0) throw python_error();
}

// What `look` tells; `native.py` has the same numbers.
constexpr long kOdd = 1, kTwice = 2, kUnseen = 4;

// Returns whether an object comes twice.
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
    if (!read(items[i]).plain()) found |= kOdd;
  return PyLong_FromLong(found);
  END_HANDLE_TH_ERRORS
}

// How a leaf goes to the device: in a pack with others; through a pinned row, with a copy
// of its own; out of its own pinned memory; with nothing to copy; or by Python.
enum class Way { packed, gathered, direct, empty, python };

struct Step {
  Py_ssize_t index;
  Way way;
  int pack;
  int64_t offset, nbytes;
};

// How all leaves go, and the bytes of each pack and of the gathered row.
struct Route {
  c10::SmallVector<Step, 32> steps;
  c10::SmallVector<int64_t, 4> packs;
  int64_t gathered = 0;

  Route(const Core& core, PyObject* const* items, Py_ssize_t count) {
    int small = 0;
    for (Py_ssize_t i = 0; i < count; i++) {
      const auto leaf = read(items[i]);
      steps.push_back({i, way(core, leaf), 0, 0, leaf.nbytes});
      small += steps.back().way == Way::gathered;
    }
    const bool pack = core.pack && small > 1;  // one leaf is its own buffer
    for (auto& step : steps) {
      const auto room = (step.nbytes + kAlignment - 1) / kAlignment * kAlignment;
      if (step.way != Way::gathered) continue;
      if (!pack) {
        step.offset = gathered;
        gathered += room;
        continue;
      }
      if (packs.empty() || packs.back() + room > kLargestPack) packs.push_back(0);
      step.way = Way::packed;
      step.pack = (int)packs.size() - 1;
      step.offset = packs.back();
      packs.back() += room;
    }
  }

  static Way way(const Core& core, const Leaf& leaf) {
    if (!leaf.plain()) return Way::python;
    if (leaf.nbytes == 0) return Way::empty;
    if (leaf.nbytes < core.below) return Way::gathered;
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
  TORCH_CHECK_VALUE(
      tensor.is_contiguous() && tensor.scalar_type() == at::kByte &&
          tensor.device().is_cpu() && tensor.numel() >= nbytes,
      "a row must be ", nbytes, " bytes of host memory");
  append(rows, row.object);
  return tensor;
}

// Reads a leaf again before its bytes are copied: see Note [what may change meanwhile].
Leaf read_again(PyObject* leaves, const Step& step) {
  Leaf leaf;
  if (step.index < PyList_GET_SIZE(leaves)) leaf = read(PyList_GET_ITEM(leaves, step.index));
  TORCH_CHECK(leaf.plain() && leaf.nbytes == step.nbytes,
              "another thread has changed a leaf while it was copied");
  return leaf;
}

PyObject* nones(Py_ssize_t count) {
  PyObject* list = PyList_New(count);
  for (Py_ssize_t i = 0; list != nullptr && i < count; i++)
    PyList_SET_ITEM(list, i, Py_NewRef(Py_None));
  return list;
}

// Puts a new leaf into its place. A leaf that is its own buffer is recorded as one; one
// without items has no memory to be recorded.
void put(const Lists& lists, const Step& step, at::Tensor&& tensor) {
  Ref leaf(THPVariable_Wrap(std::move(tensor)));
  if (step.way == Way::gathered || step.way == Way::direct) append(lists.buffers, leaf.object);
  if (PyList_SetItem(lists.made.object, step.index, leaf.release()) != 0) throw python_error();
}

// Queues the copies on the current stream.
void queue(const Core& core, PyObject* leaves, const Lists& lists) {
  const Route route(core, ((PyListObject*)leaves)->ob_item, PyList_GET_SIZE(leaves));
  c10::SmallVector<at::Tensor, 4> hosts, packs;
  for (const auto nbytes : route.packs)
    hosts.push_back(row_of(core, nbytes, lists.rows).narrow(0, 0, nbytes));
  at::Tensor gathered;
  if (route.gathered != 0) gathered = row_of(core, route.gathered, lists.rows);
  if (!hosts.empty()) {
    const auto bytes = at::TensorOptions().dtype(at::kByte).device(core.device);
    WithoutGil free;
    for (const auto nbytes : route.packs) packs.push_back(at::empty({nbytes}, bytes));
  }
  std::vector<std::pair<const Step*, at::Tensor>> single;
  for (const auto& step : route.steps) {
    if (step.way == Way::python) {
      append(lists.rest, Ref(PyLong_FromSsize_t(step.index)).object);
      continue;
    }
    const auto leaf = read_again(leaves, step);
    if (step.way == Way::packed) {
      fill(leaf, hosts[step.pack], step.offset);
      put(lists, step, cut(packs[step.pack], step.offset, *leaf.tensor));
    } else if (step.way == Way::gathered) {
      fill(leaf, gathered, step.offset);
      single.emplace_back(&step, cut(gathered, step.offset, *leaf.tensor));
    } else {
      // What the device reads where it is, is kept before anything is queued.
      if (step.way == Way::direct &&
          PyList_Append(lists.sources, PyList_GET_ITEM(leaves, step.index)) != 0)
        throw python_error();
      single.emplace_back(&step, *leaf.tensor);
    }
  }
  if (!packs.empty() || !single.empty()) {
    WithoutGil free;
    for (size_t i = 0; i < packs.size(); i++) packs[i].copy_(hosts[i], true);
    for (auto& [step, tensor] : single) {
      // Also one without items: it must share its storage with no other, since as the
      // `out=` of an operation it grows.
      auto made = at::empty_strided(tensor.sizes(), strides_of_copy(tensor),
                                    tensor.options().device(core.device));
      if (step->nbytes != 0) made.copy_(tensor, true);
      tensor = std::move(made);
    }
  }
  for (auto& [step, tensor] : single) put(lists, *step, std::move(tensor));
  for (auto& pack : packs) append(lists.buffers, Ref(THPVariable_Wrap(std::move(pack))).object);
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
  Ref ready(Py_NewRef(Py_None));
  if (core.event != Py_None) {
    guard.emplace(core.stream);
    const Ref captures(PyObject_CallNoArgs(core.capturing));
    if (captures.object == Py_True) Py_RETURN_NONE;
    ready.reset(PyObject_CallOneArg(core.event, core.where));
    TORCH_CHECK_TYPE((PyObject*)Py_TYPE(ready.object) == core.event, "no event of torch");
  }
  const Lists lists{Ref(nones(PyList_GET_SIZE(args[0]))), Ref(PyList_New(0)),
                    Ref(PyList_New(0)), Ref(PyList_New(0)), args[1]};
  queue(core, args[0], lists);
  if (core.event != Py_None) {
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
  core.take = Py_NewRef(take);
  core.event = Py_NewRef(event);
  core.where = Py_NewRef(device);
  core.capturing = Py_NewRef(capturing);
  return made.release();
  END_HANDLE_TH_ERRORS
}

// Nothing that it holds leads back to it, so it is no business of the cycle collector.
void destroy(PyObject* self) {
  const auto& core = *(Core*)self;
  for (auto* held : {core.take, core.event, core.where, core.capturing}) Py_XDECREF(held);
  Py_TYPE(self)->tp_free(self);
}

PyMethodDef methods[] = {
    {"look", look, METH_O, "Say what is among leaves: odd ones, doubles."},
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
  if (PyType_Ready(&core_type) != 0) return nullptr;
  const Ref devices(PyImport_ImportModule("torch.utils._device"));
  device_context = PyObject_GetAttrString(devices.object, "DeviceContext");
  if (device_context == nullptr) return nullptr;
  Ref made(PyModule_Create(&module));
  if (PyModule_AddObjectRef(made.object, "Core", (PyObject*)&core_type) != 0) return nullptr;
  return made.release();
  END_HANDLE_TH_ERRORS
}
