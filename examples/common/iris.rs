//! Edgar Anderson's measurements of 150 irises of three species, as R. A. Fisher published them: "The use of multiple
//! measurements in taxonomic problems", Annals of Eugenics 7 (1936). The file is that of the UCI Machine Learning Repository
//! (doi 10.24432/C56C76), which is under CC BY 4.0, with its errors in
//! the 35th and the 38th flower corrected after the paper, as its description says.

use std::ops::Range;

const CSV: &str = include_str!("iris.csv");
const SPECIES: [&str; 3] = ["setosa", "versicolor", "virginica"];
const FEATURES: usize = 4;
/// Every so many flowers of a species, one is for the test.
const TEST_EVERY: usize = 5;

pub struct Flower {
    /// Length and width of sepal and petal, standardised.
    pub features: [f32; FEATURES],
    pub species: usize,
}

pub struct Iris {
    /// 120 flowers to learn from, of each species in turn, so that a part of them has as many of each.
    pub train: Vec<Flower>,
    /// 30 that training does not see.
    pub test: Vec<Flower>,
}

impl Iris {
    pub fn new() -> Iris {
        let flowers: Vec<Flower> = CSV.lines().skip(1).map(read).collect();
        let each = flowers.len() / SPECIES.len();
        let mut numbered: Vec<_> =
            flowers.into_iter().enumerate().map(|(n, flower)| (n % each, flower)).collect();
        numbered.sort_by_key(|(number, flower)| (*number, flower.species));
        let (train, test): (Vec<_>, Vec<_>) =
            numbered.into_iter().partition(|(number, _)| number % TEST_EVERY != TEST_EVERY - 1);
        let bare = |numbered: Vec<(usize, Flower)>| numbered.into_iter().map(|(_, flower)| flower).collect();
        let mut iris = Iris { train: bare(train), test: bare(test) };
        iris.standardise();
        iris
    }

    /// Gives each feature mean 0 and variance 1 over the flowers to learn from.
    fn standardise(&mut self) {
        for feature in 0..FEATURES {
            let count = self.train.len() as f32;
            let mean = self.train.iter().map(|flower| flower.features[feature]).sum::<f32>() / count;
            let square = |flower: &Flower| (flower.features[feature] - mean).powi(2);
            let deviation = (self.train.iter().map(square).sum::<f32>() / count).sqrt();
            for flower in self.train.iter_mut().chain(&mut self.test) {
                flower.features[feature] = (flower.features[feature] - mean) / deviation;
            }
        }
    }
}

fn read(line: &str) -> Flower {
    let mut fields = line.split(',');
    let mut field = || fields.next().expect("a line has five fields");
    let features = std::array::from_fn(|_| field().parse().expect("a measurement is a number"));
    let name = field();
    let species = SPECIES.iter().position(|species| *species == name).expect("there are three species");
    Flower { features, species }
}

/// Which of `len` things are in one of so many parts: as equal as can be, and in order.
pub fn part(len: usize, index: usize, parts: usize) -> Range<usize> {
    len * index / parts..len * (index + 1) / parts
}
