//! A plan as a table and as a picture.
