// Stan's ADVI as CmdStan's `variational` calls it: data.json, family, seed and number of draws to a CSV file of draws.
#include <stan/callbacks/interrupt.hpp>
#include <stan/callbacks/stream_logger.hpp>
#include <stan/callbacks/stream_writer.hpp>
#include <stan/callbacks/writer.hpp>
#include <stan/io/empty_var_context.hpp>
#include <stan/io/json/json_data.hpp>
#include <stan/model/model_base.hpp>
#include <stan/services/experimental/advi/fullrank.hpp>
#include <stan/services/experimental/advi/meanfield.hpp>

#include <fstream>
#include <iostream>
#include <string>

stan::model::model_base &new_model(stan::io::var_context &data, unsigned int seed, std::ostream *messages);

int main(int argc, char **argv) {
  std::ifstream file(argv[1]);
  stan::json::json_data data(file);
  const unsigned int seed = std::stoul(argv[3]);
  const int draws = std::stoi(argv[4]);
  stan::model::model_base &model = new_model(data, seed, &std::cerr);
  stan::io::empty_var_context init;
  stan::callbacks::interrupt interrupt;
  stan::callbacks::stream_logger logger(std::cerr, std::cerr, std::cerr, std::cerr, std::cerr);
  stan::callbacks::writer none;
  std::ofstream out(argv[5]);
  stan::callbacks::stream_writer parameters(out, "# ");
  // CmdStan's defaults
  const double radius = 2, tolerance = 0.01, eta = 1;
  const int gradient_samples = 1, elbo_samples = 100, iterations = 10000, adaptation = 50, every = 100;
  auto fit = std::string(argv[2]) == "fullrank"
                 ? stan::services::experimental::advi::fullrank<stan::model::model_base>
                 : stan::services::experimental::advi::meanfield<stan::model::model_base>;
  return fit(model, init, seed, 1, radius, gradient_samples, elbo_samples, iterations, tolerance, eta, true, adaptation,
             every, draws, interrupt, logger, none, parameters, none);
}
