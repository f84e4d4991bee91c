//! `hcomm why`.
use crate::failure::Outcome;
/// Draws
#[derive(clap::Args)]
pub struct Args {}
/// x
pub fn run(_: &Args) -> Outcome {
    Ok(std::process::ExitCode::SUCCESS)
}
