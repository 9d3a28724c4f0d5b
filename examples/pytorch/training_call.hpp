// SPDX-License-Identifier: MIT
// What the binding of the gradients to PyTorch hands to giwa: one call, of an element type that is known when the program runs.
#ifndef GIWA_EXAMPLES_PYTORCH_TRAINING_CALL_HPP
#define GIWA_EXAMPLES_PYTORCH_TRAINING_CALL_HPP

#include "attention_call.hpp"

// The forward call, and the gradients; those without data are not computed.
struct training_call : attention_call {
  any_tensor dout, dq, dk, dv;
};

// Each is in a separate file, so that they compile in parallel. Asynchronous; giwa makes its checks. attend_…() writes lse.
giwa::status gradients_fp16(const training_call& call);
giwa::status gradients_bf16(const training_call& call);
giwa::status gradients_fp32(const training_call& call);

#endif
