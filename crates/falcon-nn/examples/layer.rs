//! A Falcon layer: made, run over a batch, and streamed token by token to the same result; and a whole model.

use burn::tensor::{Device, Distribution, Int, Tensor};
use falcon_nn::{MixerConfig, ModelConfig};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let (batch, time, hidden, heads) = (2, 100, 256, 4);

    let device = Device::flex(); // `.autodiff()` to train
    let layer = MixerConfig::preset("falcon-1.3", hidden, heads)?.init(hidden, 0, &device)?;
    let x = Tensor::<3>::random([batch, time, hidden], Distribution::Default, &device);
    let whole = layer.forward(x.clone()); // [batch, time, hidden]

    let mut state = layer.state(batch); // or as it comes: the state does not grow
    let tokens = (0..time).map(|t| x.clone().slice([0..batch, t..t + 1]));
    let streamed = Tensor::cat(tokens.map(|token| layer.resume(token, &mut state)).collect(), 1);

    println!("falcon-1.3 by {:?}", layer.engine());
    let difference: f32 = (whole - streamed).abs().max().into_scalar();
    println!("{time} tokens at once, or one by one: {difference:.1e} apart");

    let model = ModelConfig::preset("falcon-3a.3", "tiny", 256)?.init(0, &device)?;
    let logits = model.forward(Tensor::<2, Int>::zeros([batch, time], &device)); // [batch, time, 256]
    println!("a model says {:?}", logits.dims());
    Ok(())
}
