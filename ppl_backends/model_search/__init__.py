"""Search over models by their evidence.

================  ==================================================================
``select``        the public call
``forms``         the regression of a search: a design and a response
``model_form``    or a PyMC model or Stan program
``space``         models, their groups and heredity, and the prior over them
``switched``      a regression whose coefficients can be switched off
``evidences``     of a model: exact, by Laplace, by EP, estimated
``enumeration``   all models
``surrogate``     a Gaussian likelihood shared by all models, from which their posterior is reached
``path``          from the prior of models to their posterior
``moves``         independent proposals and small steps
``sampler``       runs of SMC, and whether they agree
``results``       InferenceData
``predictions``   the response at new rows, averaged over models
``indicators``    models with indicators written out
``chain``         a Markov chain over models and coefficients, for a step method
================  ==================================================================
"""

from ppl_backends.model_search.predictions import Prediction, predict
from ppl_backends.model_search.select import select_variables

__all__ = ["Prediction", "predict", "select_variables"]
