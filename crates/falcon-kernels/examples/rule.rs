//! A rule on slices: forward, backward, and one token at a time to the same result.

use falcon_kernels::rule::Align;
use falcon_kernels::{Decoder, Form, Inputs, Rule, View, backward, forward};

/// A rule of one's own.
const MINE: Rule = Rule { window: 8, align: Align::Same, ..Rule::FALCON_3A };

fn main() -> Result<(), falcon_kernels::Error> {
    let (tokens, heads, dim_k, dim_v) = (100, 2, 16, 32);
    // Any numbers will do.
    let wave = |count: usize, of: f64| -> Vec<f64> { (0..count).map(|i| (i as f64 * of).sin()).collect() };
    let [q, k] = [0.31, 0.17].map(|of| wave(tokens * heads * dim_k, of));
    let v = wave(tokens * heads * dim_v, 0.23);
    let (beta, ridge) = (vec![1.0; tokens * heads], vec![0.05; tokens * heads]);
    let mut out = vec![0.0; v.len()];
    let grad_out = vec![1.0; v.len()];

    let inputs = Inputs {
        q: View::new(&q, [tokens, heads, dim_k])?, // any strides: nobody transposes
        k: View::new(&k, [tokens, heads, dim_k])?,
        v: View::new(&v, [tokens, heads, dim_v])?,
        gain: Some(View::new(&beta, [tokens, heads, 1])?),
        decay: Some(View::new(&ridge, [tokens, heads, 1])?), // λ̄
        offsets: &[0, tokens],                               // packed sequences: cu_seqlens
    };
    let before = inputs.fresh_state(&Rule::FALCON_1)?;
    let mut state = before.clone();
    forward(&Rule::FALCON_1, Form::CHUNKED, &inputs, &mut state, &mut out)?;
    let grads = backward(&Rule::FALCON_1, Form::CHUNKED, &inputs, &before, &grad_out, None)?;
    println!("{} outputs, {} gradients of keys", out.len(), grads.k.len());

    // The same as a stream: the state is all that is kept, and it does not grow.
    let mut stream = Decoder::new(&Rule::FALCON_1, before)?;
    let mut apart = 0.0f64;
    for (t, expected) in out.chunks_exact(heads * dim_v).enumerate() {
        let now = Inputs {
            q: token(&q, t, heads, dim_k)?,
            k: token(&k, t, heads, dim_k)?,
            v: token(&v, t, heads, dim_v)?,
            gain: Some(token(&beta, t, heads, 1)?),
            decay: Some(token(&ridge, t, heads, 1)?),
            offsets: &[0, 1],
        };
        let mut said = vec![0.0; heads * dim_v];
        stream.step(&now, &mut said)?;
        apart = said.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(apart, f64::max);
    }
    println!("as a stream: {apart:.1e} apart");

    forward(&MINE, Form::CHUNKED, &inputs, &mut inputs.fresh_state(&MINE)?, &mut out)?;
    println!("a rule of one's own: {:.3} …", out[out.len() - 1]);
    Ok(())
}

/// The numbers of token `t`.
fn token(data: &[f64], t: usize, heads: usize, width: usize) -> Result<View<'_, f64>, falcon_kernels::Error> {
    View::new(&data[t * heads * width..][..heads * width], [1, heads, width])
}
