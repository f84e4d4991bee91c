//! A plan as a table and as a picture.
//!
//! - `table`: [`text`], every step of every rank.
//! - `picture`: [`svg`], ranks as lanes over logical time.
//! - `timeline`: when each chunk of each step moves.

mod picture;
mod table;
mod timeline;

pub use picture::svg;
pub use table::text;
