//! Entry point.

mod soft_roce;

use std::path::Path;
use std::process::ExitCode;

fn main() -> anyhow::Result<ExitCode> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap_or(Path::new("."));
    let mut arguments = std::env::args().skip(1);
    anyhow::ensure!(
        arguments.next().as_deref() == Some("soft-roce"),
        "usage: cargo xtask soft-roce [-- command]"
    );
    let command: Vec<_> = arguments.skip_while(|word| word == "--").collect();
    let status = soft_roce::run(root, &command)?;
    Ok(ExitCode::from(u8::try_from(status).unwrap_or(1)))
}
