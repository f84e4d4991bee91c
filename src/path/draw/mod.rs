//! A plan as a table ([`text`]) and as a picture ([`svg`]).

mod picture;
mod table;
mod timeline;

pub use picture::svg;
pub use table::text;
