// Refuses half of its points, in the ways a program can.
parameters {
  real x;
  real y;
}
model {
  x ~ std_normal();
  y ~ std_normal();
  if (y > 5) {
    target += hypot(x - x, x - x);  // finite, with a gradient that is not
  } else if (y > 4) {
    target += log(negative_infinity());
  } else if (x < 0) {
    reject("x is negative: ", x);
  }
}
generated quantities {
  real gq = x;
  if (x < -1) reject("no quantities");
  real after = 1;
}
