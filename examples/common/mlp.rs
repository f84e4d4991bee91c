//! A multilayer perceptron, whole or some of its layers: dense, with ReLU between them, softmax and cross-entropy behind the
//! last. What it computes depends on the order of the flowers alone, so that it can be compared bit by bit.

use std::ops::Range;

use super::Flower;

/// The step of gradient descent, along the mean gradient of all flowers.
const RATE: f32 = 0.1;

/// Consecutive layers.
#[derive(Clone)]
pub struct Mlp {
    layers: Range<usize>,
    /// Of each layer the weights, a row per output, and then the biases.
    pub parameters: Vec<f32>,
}

impl Mlp {
    /// How many values a flower has before the first layer and behind each: features, three hidden layers, species.
    pub const WIDTHS: [usize; 5] = [4, 16, 16, 16, 3];
    pub const LAYERS: usize = Self::WIDTHS.len() - 1;

    /// Layers before training, the same in every process.
    pub fn new(layers: Range<usize>) -> Mlp {
        let mut parameters = Vec::with_capacity(Self::count(layers.clone()));
        for layer in layers.clone() {
            let (inputs, outputs) = (Self::WIDTHS[layer], Self::WIDTHS[layer + 1]);
            // He et al., "Delving deep into rectifiers" (2015): variance 2 / inputs, here of a uniform distribution.
            let bound = (6.0 / inputs as f32).sqrt();
            let mut random = uniform(layer as u64 + 1);
            parameters.extend((0..inputs * outputs).map(|_| bound * random()));
            parameters.extend((0..outputs).map(|_| 0.0));
        }
        Mlp { layers, parameters }
    }

    /// How many parameters layers have.
    pub fn count(layers: Range<usize>) -> usize {
        layers.map(|layer| (Self::WIDTHS[layer] + 1) * Self::WIDTHS[layer + 1]).sum()
    }

    /// A gradient to add to.
    pub fn zeros(&self) -> Vec<f32> {
        vec![0.0; self.parameters.len()]
    }

    /// The activations of some flowers, a row each: what comes in, and what comes out of each layer.
    pub fn forward(&self, input: Vec<f32>) -> Vec<Vec<f32>> {
        let mut activations = vec![input];
        for (layer, place) in self.places() {
            let (inputs, outputs) = (Self::WIDTHS[layer], Self::WIDTHS[layer + 1]);
            let (weights, biases) = self.parameters[place].split_at(inputs * outputs);
            let mut output = Vec::new();
            for row in activations[activations.len() - 1].chunks_exact(inputs) {
                for (weights, bias) in weights.chunks_exact(inputs).zip(biases) {
                    let sum =
                        bias + weights.iter().zip(row).map(|(weight, value)| weight * value).sum::<f32>();
                    output.push(if layer + 1 < Self::LAYERS { sum.max(0.0) } else { sum });
                }
            }
            activations.push(output);
        }
        activations
    }

    /// From the gradient of the output to that of the input. Adds that of the parameters.
    pub fn backward(&self, activations: &[Vec<f32>], mut output: Vec<f32>, gradient: &mut [f32]) -> Vec<f32> {
        for (layer, place) in self.places().into_iter().rev() {
            let (inputs, outputs) = (Self::WIDTHS[layer], Self::WIDTHS[layer + 1]);
            let (weights, _) = self.parameters[place.clone()].split_at(inputs * outputs);
            let (of_weights, of_biases) = gradient[place].split_at_mut(inputs * outputs);
            let at = layer - self.layers.start;
            if layer + 1 < Self::LAYERS {
                for (gradient, _) in
                    output.iter_mut().zip(&activations[at + 1]).filter(|(_, value)| **value == 0.0)
                {
                    *gradient = 0.0;
                }
            }
            let mut input = vec![0.0; activations[at].len()];
            let rows = activations[at].chunks_exact(inputs).zip(input.chunks_exact_mut(inputs));
            for ((values, input), output) in rows.zip(output.chunks_exact(outputs)) {
                for (to, gradient) in output.iter().enumerate() {
                    of_biases[to] += gradient;
                    let row = to * inputs..(to + 1) * inputs;
                    add(&mut of_weights[row.clone()], values, *gradient);
                    add(input, &weights[row], *gradient);
                }
            }
            output = input;
        }
        output
    }

    /// Adds the gradient of the loss of some flowers, summed, and returns that loss: for all layers.
    pub fn gradient(&self, flowers: &[Flower], gradient: &mut [f32]) -> f32 {
        let activations = self.forward(Flower::rows(flowers));
        let (loss, output) = Self::loss(&activations[Self::LAYERS], flowers);
        self.backward(&activations, output, gradient);
        loss
    }

    /// Softmax and cross-entropy, summed over flowers, and its gradient by the scores.
    pub fn loss(scores: &[f32], flowers: &[Flower]) -> (f32, Vec<f32>) {
        let mut loss = 0.0;
        let mut gradient = Vec::with_capacity(scores.len());
        for (scores, flower) in scores.chunks_exact(Self::WIDTHS[Self::LAYERS]).zip(flowers) {
            let most = scores.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let sum: f32 = scores.iter().map(|score| (score - most).exp()).sum();
            loss += sum.ln() + most - scores[flower.species];
            let is_right = |species| if species == flower.species { 1.0 } else { 0.0 };
            let of_score = |(species, score): (usize, &f32)| (score - most).exp() / sum - is_right(species);
            gradient.extend(scores.iter().enumerate().map(of_score));
        }
        (loss, gradient)
    }

    /// A step of gradient descent, along a gradient that was summed over so many flowers.
    pub fn descend(&mut self, gradient: &[f32], flowers: usize) {
        add(&mut self.parameters, gradient, -RATE / flowers as f32);
    }

    /// How many flowers it gives the right species: of all layers.
    pub fn right(&self, flowers: &[Flower]) -> usize {
        let activations = self.forward(Flower::rows(flowers));
        let scores = activations[Self::LAYERS].chunks_exact(Self::WIDTHS[Self::LAYERS]);
        let is_right = |(scores, flower): &(&[f32], &Flower)| {
            let best = (0..scores.len()).max_by(|a, b| scores[*a].total_cmp(&scores[*b]));
            best == Some(flower.species)
        };
        scores.zip(flowers).filter(is_right).count()
    }

    /// Each layer with the place of its parameters.
    fn places(&self) -> Vec<(usize, Range<usize>)> {
        let end = |layer| Self::count(self.layers.start..layer);
        self.layers.clone().map(|layer| (layer, end(layer)..end(layer + 1))).collect()
    }
}

impl Flower {
    /// The features of some, a row each.
    pub fn rows(flowers: &[Flower]) -> Vec<f32> {
        flowers.iter().flat_map(|flower| flower.features).collect()
    }
}

/// Adds the multiple of a vector to another.
fn add(sum: &mut [f32], vector: &[f32], factor: f32) {
    for (sum, value) in sum.iter_mut().zip(vector) {
        *sum += factor * value;
    }
}

/// Numbers from -1 to 1, the same for the same seed: xorshift (G. Marsaglia, "Xorshift RNGs", 2003).
fn uniform(seed: u64) -> impl FnMut() -> f32 {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 40) as f32 / (1 << 23) as f32 - 1.0
    }
}
