//! Element types are those that the kernels know.

#[derive(Clone, Copy, Debug, PartialEq)]
struct Point(f32, f32);

impl hcomm::Element for Point {
    const DTYPE: hcomm::DType = hcomm::DType::F32;
}

fn main() {}
