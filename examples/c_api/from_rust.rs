// SPDX-License-Identifier: MIT
//! Calls giwa from Rust on the CPU, and checks attention against loops in f64. The same call with pointers to a GPU's memory, `place: 0`
//! and a stream runs there.
//!
//!   rustc --edition 2021 -O examples/c_api/from_rust.rs -L . -l giwa_c -C link-arg=-Wl,-rpath,. -o from_rust      # after giwa_c.cu
use std::ffi::{c_char, c_int, c_void, CStr};
use std::ptr::{null, null_mut};

const CPU: i32 = 1;
const BF16: i32 = 1;
const INVALID_ARGUMENT: c_int = 1;

#[repr(C)]
#[derive(Clone, Copy)]
struct Tensor {
    data: *mut c_void,
    sizes: [i64; 4],
    strides: [i64; 4],
}

/// giwa_attention of giwa_c.h.
#[repr(C)]
#[derive(Clone, Copy)]
struct Attention {
    place: i32,
    dtype: i32,
    stream: *mut c_void,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    o: Tensor,
    lse: *mut f32,
    scale: *const f32,
    causal: i32,
    window: i32,
    top_left: i32,
    workspace: *mut c_void,
    workspace_bytes: i64,
    q_offsets: *const i32,
    k_offsets: *const i32,
    sequences: i64,
    max_q: i64,
    dout: Tensor,
    dq: Tensor,
    dk: Tensor,
    dv: Tensor,
    non_deterministic: i32,
    lengths: *const i32,
    pages: *const i32,
    pages_per_sequence: i64,
}

extern "C" {
    fn giwa_attention_forward(call: *const Attention, message: *mut c_char, message_bytes: usize) -> c_int;
}

/// Safe where the tensors of the call are: bad sizes, strides and types come back as an error.
unsafe fn forward(call: &Attention) -> Result<(), (c_int, String)> {
    let mut message = [0 as c_char; 512];
    match giwa_attention_forward(call, message.as_mut_ptr(), message.len()) {
        0 => Ok(()),
        code => Err((code, CStr::from_ptr(message.as_ptr()).to_string_lossy().into_owned())),
    }
}

fn bf16(x: f32) -> u16 {
    (x.to_bits() >> 16) as u16 // of numbers that need no rounding
}
fn number(bits: u16) -> f64 {
    f32::from_bits(u32::from(bits) << 16).into()
}

const ROWS: usize = 50;
const HEADS: usize = 4;
const KV_HEADS: usize = 2;
const SIZE: usize = 64;

/// (1, ROWS, heads, SIZE), contiguous.
fn tensor(data: &mut [u16], heads: usize) -> Tensor {
    let (rows, heads, size) = (ROWS as i64, heads as i64, SIZE as i64);
    Tensor {
        data: data.as_mut_ptr().cast(),
        sizes: [1, rows, heads, size],
        strides: [rows * heads * size, heads * size, size, 1],
    }
}

fn main() {
    let mut state = 2026u32;
    let mut random = |heads: usize| -> Vec<u16> {
        (0..ROWS * heads * SIZE)
            .map(|_| {
                state = state.wrapping_mul(1664525).wrapping_add(1013904223);
                bf16(((state >> 24) as f32 - 128.0) / 64.0)
            })
            .collect()
    };
    let (mut q, mut k, mut v) = (random(HEADS), random(KV_HEADS), random(KV_HEADS));
    let (mut o, mut lse) = (vec![0u16; q.len()], vec![0f32; HEADS * ROWS]);
    let none = Tensor {
        data: null_mut(),
        sizes: [0; 4],
        strides: [0; 4],
    };
    let mut call = Attention {
        place: CPU,
        dtype: BF16,
        stream: null_mut(),
        q: tensor(&mut q, HEADS),
        k: tensor(&mut k, KV_HEADS),
        v: tensor(&mut v, KV_HEADS),
        o: tensor(&mut o, HEADS),
        lse: lse.as_mut_ptr(),
        scale: null(),
        causal: 1,
        window: 0,
        top_left: 0,
        workspace: null_mut(),
        workspace_bytes: 0,
        q_offsets: null(),
        k_offsets: null(),
        sequences: 0,
        max_q: 0,
        dout: none,
        dq: none,
        dk: none,
        dv: none,
        non_deterministic: 0,
        lengths: null(),
        pages: null(),
        pages_per_sequence: 0,
    };
    unsafe { forward(&call) }.unwrap_or_else(|(code, text)| panic!("{code}: {text}"));

    let row = |x: &[u16], heads: usize, i: usize, h: usize| -> Vec<f64> {
        let begin = (i * heads + h) * SIZE;
        x[begin..begin + SIZE].iter().map(|&bits| number(bits)).collect()
    };
    let (mut error, mut lse_error) = (0f64, 0f64);
    for h in 0..HEADS {
        let g = h / (HEADS / KV_HEADS);
        for i in 0..ROWS {
            let query = row(&q, HEADS, i, h);
            let weights: Vec<f64> = (0..=i)
                .map(|j| query.iter().zip(row(&k, KV_HEADS, j, g)).map(|(a, b)| a * b).sum::<f64>() / (SIZE as f64).sqrt())
                .map(f64::exp)
                .collect();
            let sum: f64 = weights.iter().sum();
            let got = row(&o, HEADS, i, h);
            for d in 0..SIZE {
                let expected: f64 = (0..=i).map(|j| weights[j] / sum * number(v[(j * KV_HEADS + g) * SIZE + d])).sum();
                error = error.max((got[d] - expected).abs());
            }
            lse_error = lse_error.max((f64::from(lse[h * ROWS + i]) - sum.ln()).abs());
        }
    }
    println!("o: {error:.1e} away, lse: {lse_error:.1e}"); // v is below 2: bf16 rounds by 2^-8 at most
    call.dtype = 9;
    let refused = unsafe { forward(&call) };
    println!("a call with a type that there is not: {refused:?}");
    let right = error <= 2.0 / 128.0 && lse_error < 1e-4 && matches!(&refused, Err((INVALID_ARGUMENT, text)) if text.contains("dtype"));
    println!("from Rust, on the CPU: {}", if right { "right" } else { "FAILED" });
    std::process::exit(if right { 0 } else { 1 });
}
