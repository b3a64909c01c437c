//! The program `frontend`; the program `qdl` under this name is the same.

#[global_allocator]
static ALLOCATOR: accelerator::Allocator = accelerator::Allocator;

fn main() {
    frontend::entry::main(std::env::args_os())
}
