// Assignment of a whole array to an array with elements of another type, as in `array[N] vector[D] filled = y` with data
// y and parameters in `filled`. stanc's optimisation declares `filled` without its size, and Stan's own function, which
// writes to the elements that the array has, then writes to memory that is not there.
namespace stan {
namespace model {

template <typename To, typename From, require_std_vector_t<From>* = nullptr,
          require_not_t<std::is_assignable<std::vector<To>&, std::decay_t<From>>>* = nullptr>
inline void assign(std::vector<To>& x, From&& y, const char* name) {
  if (x.empty()) {
    x.resize(y.size());
  }
  stan::math::check_size_match("assign array size", name, x.size(), "right hand side", y.size());
  for (size_t i = 0; i < y.size(); ++i) {
    stan::model::assign(x[i], y[i], name);
  }
}

}  // namespace model
}  // namespace stan
