//! What is printed and written.

use std::time::Duration;

use serde::Serialize;

use super::measure::Point;
use super::settings::Settings;
use crate::failure::print;
use crate::names::{Kind, counted};

/// Rank 0's output: a line per size, as soon as it is measured.
pub struct Table<'a> {
    settings: &'a Settings,
    points: Vec<Record<'a>>,
    wrong: u64,
    busbw: Vec<f64>,
}

/// A column of the table.
struct Column {
    name: &'static str,
    unit: &'static str,
    width: usize,
    /// Whether it says something of operations with data only.
    data: bool,
}

impl Column {
    const fn new(name: &'static str, unit: &'static str, width: usize, data: bool) -> Self {
        Column { name, unit, width, data }
    }

    fn is_for(&self, kind: Kind) -> bool {
        !self.data || kind != Kind::Barrier
    }
}

const COLUMNS: [Column; 14] = [
    Column::new("size", "(B)", 11, true),
    Column::new("count", "(elements)", 11, true),
    Column::new("type", "", 5, true),
    Column::new("redop", "", 6, true),
    Column::new("time", "(us)", 10, false),
    Column::new("algbw", "(GB/s)", 7, true),
    Column::new("busbw", "(GB/s)", 7, true),
    Column::new("#wrong", "", 6, false),
    Column::new("iters", "", 6, false),
    Column::new("p50", "(us)", 10, false),
    Column::new("p99", "(us)", 10, false),
    Column::new("CPU/op", "(us)", 10, false),
    Column::new("extra mem", "(B)", 9, false),
    // To the left, one space further than the others.
    Column::new(" algorithm", "", 0, false),
];

/// A point in the file.
#[derive(Serialize)]
struct Record<'a> {
    peer: &'static str,
    link: &'static str,
    op: &'static str,
    dtype: &'a str,
    redop: Option<&'a str>,
    ranks: usize,
    bytes: usize,
    median_us: f64,
    p99_us: f64,
    mean_us: f64,
    iters: usize,
    cpu_us_per_op: f64,
    beyond_bytes: u64,
    wrong: u64,
    algorithm: &'static str,
    touch: bool,
    prepared: bool,
    into: bool,
}

impl<'a> Table<'a> {
    /// Prints the head; `links` are those that there are.
    pub fn new(settings: &'a Settings, links: &str) -> Self {
        let cpus = std::thread::available_parallelism().map_or(0, usize::from);
        let op = if settings.kind.reduces() { format!(" {}", settings.op) } else { String::new() };
        let mut how = String::new();
        for (set, text) in [
            (settings.touch, ", touched"),
            (settings.prepared, ", prepared"),
            (settings.into, ", from one buffer to another"),
        ] {
            how += if set { text } else { "" };
        }
        let algorithm = match (settings.algorithm, settings.kind) {
            (Some(algorithm), _) => format!(", algorithm {algorithm}"),
            (None, Kind::SendRecv | Kind::Barrier) => String::new(),
            (None, _) => ", algorithm chosen per size".to_string(),
        };
        let dtype =
            if settings.kind == Kind::Barrier { String::new() } else { format!(" of {}", settings.dtype) };
        print(format_args!(
            "# hcomm {}: {}{op}{dtype}, {}, link {links}{algorithm}{how}, {}",
            env!("CARGO_PKG_VERSION"),
            settings.kind,
            counted(settings.ranks, "rank"),
            counted(cpus, "CPU"),
        ));
        if cfg!(debug_assertions) {
            print("# debug build: times say little");
        }
        if let Some(note) = settings.rounding() {
            print(format_args!("# {note}"));
        }
        print("#");
        let shown = || COLUMNS.iter().filter(|column| column.is_for(settings.kind));
        for head in [|column: &Column| column.name, |column: &Column| column.unit] {
            let cells = shown().map(|column| format!("{:>1$}", head(column), column.width));
            print(format_args!("#{}", cells.collect::<Vec<_>>().join(" ").trim_end()));
        }
        Table { settings, points: Vec::new(), wrong: 0, busbw: Vec::new() }
    }

    /// Prints a line.
    pub fn row(&mut self, point: Point) {
        let settings = self.settings;
        let bytes = point.count * settings.dtype.size();
        let mean = point.mean();
        let algbw = bytes as f64 / mean.as_secs_f64() / 1e9;
        let busbw = algbw * bus_factor(settings.kind, settings.ranks as f64);
        let (median, p99) = (point.percentile(50), point.percentile(99));
        let cpu_us = point.cpu.as_secs_f64() * 1e6 / point.times.len().max(1) as f64;
        let cells: [String; COLUMNS.len()] = [
            bytes.to_string(),
            point.count.to_string(),
            settings.dtype.to_string(),
            if settings.kind.reduces() { settings.op.to_string() } else { "none".into() },
            micros(mean),
            format!("{algbw:.2}"),
            format!("{busbw:.2}"),
            point.wrong.to_string(),
            point.times.len().to_string(),
            micros(median),
            micros(p99),
            format!("{cpu_us:.2}"),
            point.beyond.to_string(),
            format!(" {}", point.algorithm),
        ];
        let shown = COLUMNS.iter().zip(&cells).filter(|(column, _)| column.is_for(settings.kind));
        let line: Vec<String> = shown.map(|(column, cell)| format!("{:>1$}", cell, column.width)).collect();
        print(format_args!(" {}", line.join(" ")));
        self.wrong += point.wrong;
        self.busbw.push(busbw);
        self.points.push(Record {
            peer: "hcomm",
            link: settings.link.name(),
            op: settings.kind.name(),
            dtype: settings.dtype.name(),
            redop: settings.kind.reduces().then(|| settings.op.name()),
            ranks: settings.ranks,
            bytes,
            median_us: median.as_secs_f64() * 1e6,
            p99_us: p99.as_secs_f64() * 1e6,
            mean_us: mean.as_secs_f64() * 1e6,
            iters: point.times.len(),
            cpu_us_per_op: cpu_us,
            beyond_bytes: point.beyond,
            wrong: point.wrong,
            algorithm: point.algorithm,
            touch: settings.touch,
            prepared: settings.prepared,
            into: settings.into,
        });
    }

    /// Prints the foot and writes the file.
    pub fn finish(self) -> Result<(), String> {
        let verdict = if self.wrong == 0 { "every element right" } else { "ELEMENTS WRONG" };
        print(format_args!("#\n# {} wrong: {verdict}", self.wrong));
        if self.settings.kind != Kind::Barrier {
            let mean = self.busbw.iter().sum::<f64>() / self.busbw.len() as f64;
            print(format_args!("# mean busbw of all sizes: {mean:.3} GB/s"));
        }
        let Some(path) = &self.settings.json else { return Ok(()) };
        let text = serde_json::to_string_pretty(&self.points).map_err(|error| error.to_string())?;
        std::fs::write(path, text + "\n").map_err(|error| format!("can't write {}: {error}", path.display()))
    }
}

/// Bytes that a link must carry for each byte of the vector, at best: so that figures of different operations and
/// numbers of ranks compare with what the hardware can do. As nccl-tests counts.
fn bus_factor(kind: Kind, ranks: f64) -> f64 {
    match kind {
        Kind::AllReduce => 2.0 * (ranks - 1.0) / ranks,
        Kind::AllGather | Kind::ReduceScatter | Kind::Gather | Kind::Scatter | Kind::AllToAll => {
            (ranks - 1.0) / ranks
        }
        Kind::Broadcast | Kind::Reduce | Kind::Scan | Kind::ExScan | Kind::SendRecv | Kind::Barrier => 1.0,
    }
}

/// Four digits, as far as there are as many.
fn micros(time: Duration) -> String {
    let micros = time.as_secs_f64() * 1e6;
    let decimals = if micros < 100.0 { 2 } else { usize::from(micros < 10_000.0) };
    format!("{micros:.decimals$}")
}
