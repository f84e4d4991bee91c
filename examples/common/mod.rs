//! What the examples that train have in common: ranks to run on, flowers to tell apart, and a model.

mod iris;
mod mlp;
mod ranks;

pub use iris::{Flower, Iris, part};
pub use mlp::Mlp;
pub use ranks::{Failure, run};
