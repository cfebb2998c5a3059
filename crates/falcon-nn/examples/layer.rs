//! A Falcon layer: made, run over a batch, and streamed token by token to the same result.

use burn::tensor::{Device, Distribution, Tensor};
use falcon_nn::MixerConfig;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let device = Device::flex(); // `.autodiff()` to train
    let (batch, time, hidden, heads) = (2, 100, 256, 4);
    let layer = MixerConfig::preset("falcon-1.3", hidden, heads)?.init(hidden, 0, &device)?;
    println!("falcon-1.3 by {:?}", layer.engine());

    // The whole sequence at once.
    let x = Tensor::<3>::random([batch, time, hidden], Distribution::Normal(0.0, 1.0), &device);
    let whole = layer.forward(x.clone());

    // A prompt, and then one token at a time: the state is all that is kept, and it does not grow.
    let mut state = layer.state(batch);
    let mut pieces = vec![layer.resume(x.clone().slice([0..batch, 0..60]), &mut state)];
    for t in 60..time {
        pieces.push(layer.resume(x.clone().slice([0..batch, t..t + 1]), &mut state));
    }
    let streamed = Tensor::cat(pieces, 1);

    let difference: f32 = (whole - streamed).abs().max().into_scalar();
    println!("{time} tokens at once, or 60 and then one by one: {difference:.1e} apart");
    Ok(())
}
