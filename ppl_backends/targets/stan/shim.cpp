// The C interface of a compiled Stan program.
//
// A library built from this file and the C++ that stanc writes exports two sets of functions:
//   bs_*  BridgeStan's documented C interface, version 2.9, so that any BridgeStan client opens the library;
//   pb_*  what that interface lacks: many points in one call on several threads, data handed over as arrays, and the
//         model on subsets of the rows of its data.
//
// Stan's autodiff needs STAN_THREADS and a tape of its own in each thread; see own_tape(). A point at which the
// program throws has log density -inf in pb_* functions, which count such points and hand back one message.

#include <stan/io/chained_var_context.hpp>
#include <stan/io/empty_var_context.hpp>
#include <stan/io/json/json_data.hpp>
#include <stan/io/random_var_context.hpp>
#include <stan/io/validate_dims.hpp>
#include <stan/math/rev.hpp>
#include <stan/model/model_base.hpp>
#include <stan/services/util/create_rng.hpp>
#include <stan/version.hpp>
#include <tbb/task_arena.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <iostream>
#include <limits>
#include <memory>
#include <mutex>
#include <sstream>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#define EXPORT extern "C" __attribute__((visibility("default")))

// Defined by the C++ that stanc writes.
stan::model::model_base& new_model(stan::io::var_context& data, unsigned int seed, std::ostream* prints);

namespace {

using Values = Eigen::VectorXd;
using Variables = Eigen::Matrix<stan::math::var, Eigen::Dynamic, 1>;
using Model = std::unique_ptr<stan::model::model_base>;
constexpr double negative_infinity = -std::numeric_limits<double>::infinity();

// Every thread that touches autodiff variables needs its own tape, made on first use and freed with the thread.
void own_tape() { static thread_local stan::math::ChainableStack tape; }

char* copy_text(const std::string& text) { return strdup(text.c_str()); }

// ------------------------------------------------------------------------------------------ print statements

// Collects what the program prints; bounded, so that a print inside the model block cannot fill the memory.
class PrintBuffer : public std::streambuf {
 public:
  std::string text;

 protected:
  static constexpr size_t limit = 1 << 16;
  std::streamsize xsputn(const char* characters, std::streamsize count) override {
    if (text.size() < limit) text.append(characters, count);
    return count;
  }
  int_type overflow(int_type character) override {
    if (text.size() < limit && character != traits_type::eof()) text.push_back(static_cast<char>(character));
    return traits_type::not_eof(character);
  }
};

struct Prints {
  PrintBuffer buffer;
  std::ostream stream{&buffer};
  std::string take() {
    std::string text;
    text.swap(buffer.text);
    return text;
  }
};

Prints& prints() {
  static thread_local Prints own;
  return own;
}

using PrintCallback = void (*)(const char* text, int size);
std::atomic<PrintCallback> print_callback{nullptr};

// The bs_* functions hand what was printed to the callback, or to standard output where there is none.
void show_prints() {
  if (prints().buffer.text.empty()) return;
  std::string text = prints().take();
  PrintCallback callback = print_callback;
  if (callback)
    callback(text.data(), static_cast<int>(text.size()));
  else
    std::cout << text << std::flush;
}

// Runs the body of a bs_* function; an exception becomes an error message and the return value -1.
template <typename Body>
int guarded(char** error, const Body& body) {
  int status = 0;
  try {
    own_tape();
    body();
  } catch (const std::exception& exception) {
    if (error) *error = copy_text(exception.what());
    status = -1;
  } catch (...) {
    if (error) *error = copy_text("unknown C++ exception");
    status = -1;
  }
  show_prints();
  return status;
}

// ------------------------------------------------------------------------------------------ log density

double log_density(const stan::model::model_base& model, bool propto, bool jacobian, const double* x) {
  std::ostream* stream = &prints().stream;
  const Eigen::Index dim = model.num_params_r();
  if (propto) {  // which terms are constant shows only with autodiff variables
    stan::math::nested_rev_autodiff nested;
    Variables point = Eigen::Map<const Values>(x, dim).cast<stan::math::var>();
    return (jacobian ? model.log_prob_propto_jacobian(point, stream) : model.log_prob_propto(point, stream)).val();
  }
  Values point = Eigen::Map<const Values>(x, dim);
  return jacobian ? model.log_prob_jacobian(point, stream) : model.log_prob(point, stream);
}

double log_density_gradient(const stan::model::model_base& model, bool propto, bool jacobian, const double* x,
                            double* gradient) {
  std::ostream* stream = &prints().stream;
  const Eigen::Index dim = model.num_params_r();
  stan::math::nested_rev_autodiff nested;  // frees the tape at the end of the scope, also when the program throws
  Variables point = Eigen::Map<const Values>(x, dim).cast<stan::math::var>();
  stan::math::var density;
  if (propto)
    density = jacobian ? model.log_prob_propto_jacobian(point, stream) : model.log_prob_propto(point, stream);
  else
    density = jacobian ? model.log_prob_jacobian(point, stream) : model.log_prob(point, stream);
  density.grad();
  Eigen::Map<Values>(gradient, dim) = point.adj();
  return density.val();
}

// Column j of the Hessian from four gradients; the error is O(h^4), balanced against rounding by h ~ eps^(1/5).
void hessian_column(const stan::model::model_base& model, bool propto, bool jacobian, const double* x, Eigen::Index j,
                    double* column) {
  const Eigen::Index dim = model.num_params_r();
  const double h = std::pow(std::numeric_limits<double>::epsilon(), 0.2) * std::max(1.0, std::fabs(x[j]));
  Values point = Eigen::Map<const Values>(x, dim), gradient(dim);
  Eigen::Map<Values> sum(column, dim);
  sum.setZero();
  const double steps[] = {-2, -1, 1, 2}, weights[] = {1, -8, 8, -1};
  for (int k = 0; k < 4; ++k) {
    point(j) = x[j] + steps[k] * h;
    log_density_gradient(model, propto, jacobian, point.data(), gradient.data());
    sum += weights[k] * gradient;
  }
  sum /= 12 * h;
}

// ------------------------------------------------------------------------------------------ many points

// What happened over a batch: how many points the program refused, why, and what it printed.
class Outcome {
 public:
  void refuse(const char* reason) {
    std::lock_guard<std::mutex> lock(mutex_);
    ++refused_;
    reason_ = reason;
  }
  void collect_prints() {
    if (prints().buffer.text.empty()) return;
    std::lock_guard<std::mutex> lock(mutex_);
    printed_ += prints().take();
  }
  int report(char** error, char** printed) const {
    if (error && refused_) *error = copy_text(reason_);
    if (printed && !printed_.empty()) *printed = copy_text(printed_);
    return refused_;
  }

 private:
  std::mutex mutex_;
  int refused_ = 0;
  std::string reason_, printed_;
};

// Runs work() where reduce_sum and map_rect find at most `concurrency` threads, so that theirs and ours do not multiply.
template <typename Work>
void run_within(int concurrency, const Work& work) {
  static thread_local int own_concurrency = 0;
  static thread_local std::unique_ptr<tbb::task_arena> arena;  // kept, since making one costs more than a small model
  if (own_concurrency != concurrency) {
    arena = std::make_unique<tbb::task_arena>(concurrency);
    own_concurrency = concurrency;
  }
  arena->execute(work);
}

// Runs task(i) for i < n on up to `threads` threads, this one included; what a task throws is kept in the outcome.
// The first item is timed: where the rest is too little work to pay for starting threads, all of it is done here.
template <typename Task>
void for_each(int64_t n, int threads, Outcome& outcome, const Task& task) {
  using Clock = std::chrono::steady_clock;
  auto attempt = [&](int64_t i) {
    try {
      task(i);
    } catch (const std::exception& exception) {
      outcome.refuse(exception.what());
    } catch (...) {
      outcome.refuse("unknown C++ exception");
    }
  };
  own_tape();
  const auto start = Clock::now();
  if (n > 0) run_within(n == 1 ? threads : 1, [&] { attempt(0); });
  const double rest = std::chrono::duration<double>(Clock::now() - start).count() * (n - 1);
  const int64_t workers = rest < 1e-4 ? 1 : std::max<int64_t>(1, std::min<int64_t>(threads, n - 1));
  const int64_t block = std::max<int64_t>(1, n / (16 * workers));
  std::atomic<int64_t> next{1};
  auto work = [&] {
    own_tape();
    run_within(std::max<int64_t>(1, threads / workers), [&] {
      for (int64_t begin; (begin = next.fetch_add(block)) < n;)
        for (int64_t i = begin; i < std::min(n, begin + block); ++i) attempt(i);
    });
    outcome.collect_prints();
  };
  std::vector<std::thread> helpers;
  for (int64_t k = 1; k < workers; ++k) helpers.emplace_back(work);
  work();
  for (auto& helper : helpers) helper.join();
}

// Value, and gradient unless null, of one point: -inf and zeros unless the value is finite. A gradient that is not finite
// becomes zeros, and the value stays: leapfrog steps are exact with any function of the point in the gradient's place.
void evaluate(const stan::model::model_base& model, const double* x, double* value, double* gradient) {
  const Eigen::Index dim = model.num_params_r();
  *value = negative_infinity;
  Eigen::Map<Values> slope(gradient, gradient ? dim : 0);
  slope.setZero();
  double density;
  try {
    density = gradient ? log_density_gradient(model, false, true, x, gradient) : log_density(model, false, true, x);
  } catch (...) {
    slope.setZero();
    throw;
  }
  if (density == negative_infinity) {
    slope.setZero();
  } else if (!std::isfinite(density)) {
    slope.setZero();
    throw std::domain_error("the log density is not finite");
  } else {
    *value = density;
    if (gradient && !slope.allFinite()) {
      slope.setZero();
      throw std::domain_error("the gradient of the log density is not finite, and counts as zero");
    }
  }
}

// ------------------------------------------------------------------------------------------ data

std::unique_ptr<stan::io::var_context> read_json(const char* json) {
  const std::string text = json ? json : "";
  if (text.empty()) return std::make_unique<stan::io::empty_var_context>();
  if (text.size() > 5 && text.compare(text.size() - 5, 5, ".json") == 0) {
    std::ifstream file(text);
    if (!file) throw std::runtime_error("cannot open " + text);
    return std::make_unique<stan::json::json_data>(file);
  }
  std::istringstream stream(text);
  return std::make_unique<stan::json::json_data>(stream);
}

// One data variable: its elements in column-major order, and the axis that runs over observations (-1: none does).
template <typename T>
struct Variable {
  std::string name;
  std::vector<T> values;
  std::vector<size_t> dims;
  int row_axis;
};

template <typename T>
std::vector<Variable<T>> read_variables(int count, const char* const* names, const int* ranks, const int64_t* dims,
                                        const int* row_axes, const T* values) {
  std::vector<Variable<T>> variables;
  for (int k = 0; k < count; ++k) {
    std::vector<size_t> shape(dims, dims + ranks[k]);
    size_t size = 1;
    for (size_t length : shape) size *= length;
    variables.push_back({names[k], std::vector<T>(values, values + size), shape, row_axes[k]});
    dims += ranks[k];
    values += size;
  }
  return variables;
}

}  // namespace

// Data handed over as arrays; `count` names the integer that says how many rows there are, or is empty.
struct pb_data {
  std::vector<Variable<double>> reals;
  std::vector<Variable<int>> integers;
  std::string count;
};

namespace {

// The data as the model's constructor reads them: all rows, or a selection of them without a copy of the rest.
class RowsContext : public stan::io::var_context {
 public:
  RowsContext(const pb_data& data, const int* rows, int64_t n_rows) : data_(data), rows_(rows), n_rows_(n_rows) {}

  bool contains_r(const std::string& name) const override { return find(data_.reals, name) || contains_i(name); }
  bool contains_i(const std::string& name) const override { return find(data_.integers, name) != nullptr; }

  std::vector<double> vals_r(const std::string& name) const override {
    if (auto variable = find(data_.reals, name)) return values(*variable);
    std::vector<int> integers = vals_i(name);
    return std::vector<double>(integers.begin(), integers.end());
  }
  std::vector<int> vals_i(const std::string& name) const override {
    if (rows_ && name == data_.count) return {static_cast<int>(n_rows_)};
    auto variable = find(data_.integers, name);
    return variable ? values(*variable) : std::vector<int>{};
  }
  std::vector<std::complex<double>> vals_c(const std::string& name) const override {
    const std::vector<double> parts = vals_r(name);  // the last axis holds real and imaginary part
    const size_t size = parts.size() / 2;
    std::vector<std::complex<double>> numbers(size);
    for (size_t i = 0; i < size; ++i) numbers[i] = {parts[i], parts[size + i]};
    return numbers;
  }
  std::vector<size_t> dims_r(const std::string& name) const override {
    auto variable = find(data_.reals, name);
    return variable ? dims(*variable) : dims_i(name);
  }
  std::vector<size_t> dims_i(const std::string& name) const override {
    auto variable = find(data_.integers, name);
    return variable ? dims(*variable) : std::vector<size_t>{};
  }
  void names_r(std::vector<std::string>& names) const override { list(data_.reals, names); }
  void names_i(std::vector<std::string>& names) const override { list(data_.integers, names); }
  void validate_dims(const std::string& stage, const std::string& name, const std::string& type,
                     const std::vector<size_t>& declared) const override {
    for (size_t length : declared)
      if (length == 0) return;  // nothing to read, so nothing need be there
    stan::io::validate_dims(*this, stage, name, type, declared);
  }

 private:
  template <typename T>
  static const Variable<T>* find(const std::vector<Variable<T>>& variables, const std::string& name) {
    for (const auto& variable : variables)
      if (variable.name == name) return &variable;
    return nullptr;
  }
  template <typename T>
  static void list(const std::vector<Variable<T>>& variables, std::vector<std::string>& names) {
    names.clear();
    for (const auto& variable : variables) names.push_back(variable.name);
  }
  template <typename T>
  std::vector<size_t> dims(const Variable<T>& variable) const {
    std::vector<size_t> shape = variable.dims;
    if (rows_ && variable.row_axis >= 0) shape[variable.row_axis] = n_rows_;
    return shape;
  }
  template <typename T>
  std::vector<T> values(const Variable<T>& variable) const {
    if (!rows_ || variable.row_axis < 0) return variable.values;
    size_t stride = 1;
    for (int axis = 0; axis < variable.row_axis; ++axis) stride *= variable.dims[axis];
    const size_t slab = stride * variable.dims[variable.row_axis];
    std::vector<T> chosen;
    chosen.reserve(slab ? variable.values.size() / slab * stride * n_rows_ : 0);
    for (size_t start = 0; slab && start < variable.values.size(); start += slab)
      for (int64_t k = 0; k < n_rows_; ++k) {
        const T* row = variable.values.data() + start + rows_[k] * stride;
        chosen.insert(chosen.end(), row, row + stride);
      }
    return chosen;
  }

  const pb_data& data_;
  const int* rows_;
  const int64_t n_rows_;
};

Model build(stan::io::var_context& data, unsigned int seed) {
  own_tape();
  return Model(&new_model(data, seed, &prints().stream));
}

std::string join(const std::vector<std::string>& words) {
  std::string text;
  for (const auto& word : words) text += (text.empty() ? "" : ",") + word;
  return text;
}

}  // namespace

// ------------------------------------------------------------------------------------------ models

struct bs_model {
  Model model;
  std::string name, info, unconstrained_names, constrained_names[4], empty_variables[4];
  int n_constrained[4];

  bs_model(stan::io::var_context& data, unsigned int seed) : model(build(data, seed)) {
    name = model->model_name();
    std::vector<std::string> names;
    model->unconstrained_param_names(names, false, false);
    unconstrained_names = join(names);
    for (int part = 0; part < 4; ++part) {
      names.clear();
      model->constrained_param_names(names, part & 1, part & 2);
      constrained_names[part] = join(names);
      n_constrained[part] = static_cast<int>(names.size());
      empty_variables[part] = list_empty(part & 1, part & 2);
    }
    std::ostringstream text;
    text << "Stan version: " << stan::MAJOR_VERSION << "." << stan::MINOR_VERSION << "." << stan::PATCH_VERSION
         << "\nSTAN_THREADS=true\n";
    for (const auto& line : model->model_compile_info()) text << line << "\n";
    info = text.str();
  }
  int dim() const { return static_cast<int>(model->num_params_r()); }
  static int part(bool transformed, bool generated) { return (transformed ? 1 : 0) | (generated ? 2 : 0); }

 private:
  // Variables without elements, which the constrained names pass over: "a 0,b 2 0".
  std::string list_empty(bool transformed, bool generated) const {
    std::vector<std::string> names, empty;
    std::vector<std::vector<size_t>> dims;
    model->get_param_names(names, transformed, generated);
    model->get_dims(dims, transformed, generated);
    for (size_t k = 0; k < names.size(); ++k) {
      size_t size = 1;
      std::string text = names[k];
      for (size_t length : dims[k]) {
        size *= length;
        text += " " + std::to_string(length);
      }
      if (size == 0) empty.push_back(text);
    }
    return join(empty);
  }
};

struct bs_rng {
  stan::rng_t generator;
  explicit bs_rng(unsigned int seed) : generator(stan::services::util::create_rng(seed, 0)) {}
};

// ------------------------------------------------------------------------------------------ BridgeStan's interface

EXPORT const int bs_major_version = 2;
EXPORT const int bs_minor_version = 9;
EXPORT const int bs_patch_version = 0;

EXPORT bs_model* bs_model_construct(const char* data, unsigned int seed, char** error) {
  bs_model* model = nullptr;
  guarded(error, [&] { model = new bs_model(*read_json(data), seed); });
  return model;
}

EXPORT void bs_model_destruct(bs_model* model) { delete model; }
EXPORT void bs_free_error_msg(char* error) { free(error); }
EXPORT const char* bs_name(const bs_model* model) { return model->name.c_str(); }
EXPORT const char* bs_model_info(const bs_model* model) { return model->info.c_str(); }

EXPORT const char* bs_param_names(const bs_model* model, bool transformed, bool generated) {
  return model->constrained_names[bs_model::part(transformed, generated)].c_str();
}
EXPORT const char* bs_param_unc_names(const bs_model* model) { return model->unconstrained_names.c_str(); }
EXPORT int bs_param_num(const bs_model* model, bool transformed, bool generated) {
  return model->n_constrained[bs_model::part(transformed, generated)];
}
EXPORT int bs_param_unc_num(const bs_model* model) { return model->dim(); }

EXPORT int bs_param_constrain(const bs_model* model, bool transformed, bool generated, const double* x,
                              double* constrained, bs_rng* rng, char** error) {
  return guarded(error, [&] {
    if (generated && !rng) throw std::invalid_argument("generated quantities need a random number generator");
    bs_rng unused(0);
    Values point = Eigen::Map<const Values>(x, model->dim()), values;
    model->model->write_array((rng ? rng : &unused)->generator, point, values, transformed, generated,
                              &prints().stream);
    Eigen::Map<Values>(constrained, values.size()) = values;
  });
}

EXPORT int bs_param_unconstrain(const bs_model* model, const double* constrained, double* x, char** error) {
  return guarded(error, [&] {
    Values values = Eigen::Map<const Values>(constrained, model->n_constrained[0]), point(model->dim());
    model->model->unconstrain_array(values, point, &prints().stream);
    Eigen::Map<Values>(x, model->dim()) = point;
  });
}

EXPORT int bs_param_unconstrain_json(const bs_model* model, const char* json, double* x, char** error) {
  return guarded(error, [&] {
    Values point(model->dim());
    model->model->transform_inits(*read_json(json), point, &prints().stream);
    Eigen::Map<Values>(x, model->dim()) = point;
  });
}

EXPORT int bs_param_initialize(const bs_model* model, const char* json, bs_rng* rng, double radius, int tries,
                               bool jacobian, double* x, char** error) {
  return guarded(error, [&] {
    auto given = read_json(json);
    std::string reason = "the log density is not finite";
    Values point(model->dim());
    for (int attempt = 0; attempt < tries; ++attempt) {
      stan::io::random_var_context random(*model->model, rng->generator, radius, radius <= 0);
      stan::io::chained_var_context inits(*given, random);
      model->model->transform_inits(inits, point, &prints().stream);
      try {
        if (std::isfinite(log_density(*model->model, false, jacobian, point.data()))) {
          Eigen::Map<Values>(x, model->dim()) = point;
          return;
        }
      } catch (const std::domain_error& exception) {
        reason = exception.what();
      }
    }
    throw std::runtime_error("no initial value after " + std::to_string(tries) + " tries: " + reason);
  });
}

EXPORT int bs_log_density(const bs_model* model, bool propto, bool jacobian, const double* x, double* value,
                          char** error) {
  return guarded(error, [&] { *value = log_density(*model->model, propto, jacobian, x); });
}

EXPORT int bs_log_density_gradient(const bs_model* model, bool propto, bool jacobian, const double* x, double* value,
                                   double* gradient, char** error) {
  return guarded(error, [&] { *value = log_density_gradient(*model->model, propto, jacobian, x, gradient); });
}

EXPORT int bs_log_density_hessian(const bs_model* model, bool propto, bool jacobian, const double* x, double* value,
                                  double* gradient, double* hessian, char** error) {
  return guarded(error, [&] {
    const int dim = model->dim();
    *value = log_density_gradient(*model->model, propto, jacobian, x, gradient);
    for (int j = 0; j < dim; ++j) hessian_column(*model->model, propto, jacobian, x, j, hessian + j * int64_t(dim));
    Eigen::Map<Eigen::MatrixXd> matrix(hessian, dim, dim);
    matrix = (0.5 * (matrix + matrix.transpose())).eval();
  });
}

EXPORT int bs_log_density_hessian_vector_product(const bs_model* model, bool propto, bool jacobian, const double* x,
                                                 const double* vector, double* value, double* product, char** error) {
  return guarded(error, [&] {
    const Eigen::Index dim = model->dim();
    const Values at = Eigen::Map<const Values>(x, dim), direction = Eigen::Map<const Values>(vector, dim);
    Values gradient(dim), point(dim);
    *value = log_density_gradient(*model->model, propto, jacobian, x, gradient.data());
    const double length = direction.norm();
    const double h = std::pow(std::numeric_limits<double>::epsilon(), 0.2) * std::max(1.0, at.norm());
    Eigen::Map<Values> sum(product, dim);
    sum.setZero();
    if (length == 0) return;
    const double steps[] = {-2, -1, 1, 2}, weights[] = {1, -8, 8, -1};
    for (int k = 0; k < 4; ++k) {
      point = at + steps[k] * h / length * direction;
      log_density_gradient(*model->model, propto, jacobian, point.data(), gradient.data());
      sum += weights[k] * gradient;
    }
    sum *= length / (12 * h);
  });
}

EXPORT bs_rng* bs_rng_construct(unsigned int seed, char**) { return new bs_rng(seed); }
EXPORT void bs_rng_destruct(bs_rng* rng) { delete rng; }
EXPORT int bs_set_print_callback(PrintCallback callback, char**) {
  print_callback = callback;
  return 0;
}

// ------------------------------------------------------------------------------------------ many points in one call
// x, gradient, constrained and hessian are row-major with one row for each point. The functions return how many
// points the program refused, with the last reason in *error and what it printed in *printed, both to be freed with
// bs_free_error_msg.

EXPORT int pb_evaluate(const bs_model* model, int64_t n, const double* x, double* value, double* gradient, int threads,
                       char** error, char** printed) {
  const int64_t dim = model->dim();
  Outcome outcome;
  for_each(n, threads, outcome, [&](int64_t i) {
    evaluate(*model->model, x + i * dim, value + i, gradient ? gradient + i * dim : nullptr);
  });
  return outcome.report(error, printed);
}

// The arguments of pb_evaluate at a single point, held by callers for whom handing over each would cost too much.
struct pb_point {
  const bs_model* model;
  const double* x;
  double* value;
  double* gradient;
  int threads;
  char* error;
  char* printed;
};

EXPORT int pb_evaluate_point(pb_point* point, bool gradient) {
  return pb_evaluate(point->model, 1, point->x, point->value, gradient ? point->gradient : nullptr, point->threads,
                     &point->error, &point->printed);
}

EXPORT int pb_constrain(const bs_model* model, int64_t n, const double* x, bool transformed, bool generated,
                        const unsigned int* seeds, double* constrained, int threads, char** error, char** printed) {
  const int64_t dim = model->dim(), size = model->n_constrained[bs_model::part(transformed, generated)];
  Outcome outcome;
  for_each(n, threads, outcome, [&](int64_t i) {
    bs_rng rng(seeds[i]);
    Values point = Eigen::Map<const Values>(x + i * dim, dim), values;
    Eigen::Map<Values> row(constrained + i * size, size);
    row.setConstant(std::numeric_limits<double>::quiet_NaN());
    try {
      model->model->write_array(rng.generator, point, values, transformed, generated, &prints().stream);
    } catch (...) {  // what was written before the program threw is kept
      row.head(std::min<int64_t>(size, values.size())) = values.head(std::min<int64_t>(size, values.size()));
      throw;
    }
    row = values;
  });
  return outcome.report(error, printed);
}

EXPORT int pb_unconstrain(const bs_model* model, int64_t n, const double* constrained, double* x, int threads,
                          char** error, char** printed) {
  const int64_t dim = model->dim(), size = model->n_constrained[0];
  Outcome outcome;
  for_each(n, threads, outcome, [&](int64_t i) {
    Values values = Eigen::Map<const Values>(constrained + i * size, size), point(dim);
    model->model->unconstrain_array(values, point, &prints().stream);
    Eigen::Map<Values>(x + i * dim, dim) = point;
  });
  return outcome.report(error, printed);
}

EXPORT int pb_hessian(const bs_model* model, int64_t n, const double* x, double* hessian, int threads, char** error,
                      char** printed) {
  const int64_t dim = model->dim();
  Outcome outcome;
  for_each(n * dim, threads, outcome, [&](int64_t task) {
    double* column = hessian + task * dim;
    std::fill(column, column + dim, std::numeric_limits<double>::quiet_NaN());
    hessian_column(*model->model, false, true, x + task / dim * dim, task % dim, column);
  });
  return outcome.report(error, printed);
}

// Variables of the program that have no elements, with their dims: "a 0,b 2 0".
EXPORT const char* pb_empty_variables(const bs_model* model, bool transformed, bool generated) {
  return model->empty_variables[bs_model::part(transformed, generated)].c_str();
}

// ------------------------------------------------------------------------------------------ data as arrays

// Real variables first, then integers. `ranks` and `row_axes` have one entry for each variable, `dims` the lengths of
// all axes one after the other, `reals` and `integers` all elements, column-major within each variable.
EXPORT pb_data* pb_data_construct(int n_reals, int n_integers, const char* const* names, const int* ranks,
                                  const int64_t* dims, const int* row_axes, const double* reals, const int* integers,
                                  const char* count, char** error) {
  pb_data* data = nullptr;
  guarded(error, [&] {
    int64_t real_axes = 0;
    for (int k = 0; k < n_reals; ++k) real_axes += ranks[k];
    data = new pb_data{read_variables<double>(n_reals, names, ranks, dims, row_axes, reals),
                       read_variables<int>(n_integers, names + n_reals, ranks + n_reals, dims + real_axes,
                                           row_axes + n_reals, integers),
                       count};
  });
  return data;
}

EXPORT void pb_data_destruct(pb_data* data) { delete data; }

// The model on a selection of rows; on all of them where `rows` is null.
EXPORT bs_model* pb_model_construct(const pb_data* data, const int* rows, int64_t n_rows, unsigned int seed,
                                    char** error, char** printed) {
  bs_model* model = nullptr;
  Outcome outcome;
  for_each(1, 1, outcome, [&](int64_t) {
    RowsContext context(*data, rows, n_rows);
    model = new bs_model(context, seed);
  });
  outcome.report(error, printed);
  return model;
}

// The log density on many sets of rows. Set s holds rows[set_starts[s] .. set_starts[s + 1]); it is evaluated at the
// points numbered points[evaluation_starts[s] .. evaluation_starts[s + 1]), with one value (and one row of gradient)
// for each entry of `points`.
EXPORT int pb_evaluate_sets(const pb_data* data, unsigned int seed, int64_t n_sets, const int64_t* set_starts,
                            const int* rows, const int64_t* evaluation_starts, const int64_t* points, int64_t dim,
                            const double* x, double* value, double* gradient, int threads, char** error,
                            char** printed) {
  Outcome outcome;
  for_each(n_sets, threads, outcome, [&](int64_t s) {
    const int64_t begin = evaluation_starts[s], end = evaluation_starts[s + 1];
    std::fill(value + begin, value + end, negative_infinity);
    if (gradient) std::fill(gradient + begin * dim, gradient + end * dim, 0.0);
    RowsContext context(*data, rows + set_starts[s], set_starts[s + 1] - set_starts[s]);
    Model model = build(context, seed);
    for (int64_t k = begin; k < end; ++k) {
      try {
        evaluate(*model, x + points[k] * dim, value + k, gradient ? gradient + k * dim : nullptr);
      } catch (const std::exception& exception) {
        outcome.refuse(exception.what());
      }
    }
  });
  return outcome.report(error, printed);
}
