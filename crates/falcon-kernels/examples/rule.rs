//! Runs a rule on slices, forward and backward, and then one token at a time, which gives the same outputs.

use falcon_kernels::rule::Align;
use falcon_kernels::{Call, Decoder, Form, Inputs, Rule, View};

/// A custom rule.
const MINE: Rule = Rule { window: 8, align: Align::Same, ..Rule::FALCON_3A };

fn main() -> Result<(), falcon_kernels::Error> {
    let (tokens, heads, dim_k, dim_v) = (100, 2, 16, 32);
    // Some numbers to run on.
    let wave = |count: usize, step: f64| -> Vec<f64> { (0..count).map(|i| (i as f64 * step).sin()).collect() };
    let [q, k] = [0.31, 0.17].map(|step| wave(tokens * heads * dim_k, step));
    let v = wave(tokens * heads * dim_v, 0.23);
    let (beta, ridge) = (vec![1.0; tokens * heads], vec![0.05; tokens * heads]);
    let mut out = vec![0.0; v.len()];
    let grad_out = vec![1.0; v.len()];

    let inputs = Inputs {
        q: View::new(&q, [tokens, heads, dim_k])?, // strided layouts need no transpose
        k: View::new(&k, [tokens, heads, dim_k])?,
        v: View::new(&v, [tokens, heads, dim_v])?,
        gain: Some(View::new(&beta, [tokens, heads, 1])?),
        decay: Some(View::new(&ridge, [tokens, heads, 1])?), // λ̄
        offsets: &[0, tokens],                               // packed sequences: cu_seqlens
    };
    let call = Call::new(&Rule::FALCON_1, Form::CHUNKED, inputs)?; // everything is checked here
    let mut state = call.fresh_state();
    let tape = call.record(&mut state, &mut out)?; // `forward` where no gradient is needed
    let grads = tape.backward(&call, &grad_out, None)?;
    println!("{} outputs, {} gradients of keys", out.len(), grads.k.len());

    // The same tokens as a stream: only the state is kept, and it does not grow.
    let mut stream = Decoder::new(&Rule::FALCON_1, call.fresh_state())?;
    let mut difference = 0.0f64;
    for (t, expected) in out.chunks_exact(heads * dim_v).enumerate() {
        let now = Inputs {
            q: token(&q, t, heads, dim_k)?,
            k: token(&k, t, heads, dim_k)?,
            v: token(&v, t, heads, dim_v)?,
            gain: Some(token(&beta, t, heads, 1)?),
            decay: Some(token(&ridge, t, heads, 1)?),
            offsets: &[0, 1],
        };
        let mut streamed = vec![0.0; heads * dim_v];
        stream.step(&now, &mut streamed)?;
        difference = streamed.iter().zip(expected).map(|(a, b)| (a - b).abs()).fold(difference, f64::max);
    }
    println!("as a stream: at most {difference:.1e} from the call");

    let call = Call::new(&MINE, Form::CHUNKED, inputs)?;
    call.forward(&mut call.fresh_state(), &mut out)?;
    println!("a custom rule: {:.3} …", out[out.len() - 1]);
    Ok(())
}

/// The numbers of token `t`.
fn token(data: &[f64], t: usize, heads: usize, width: usize) -> Result<View<'_, f64>, falcon_kernels::Error> {
    View::new(&data[t * heads * width..][..heads * width], [1, heads, width])
}
