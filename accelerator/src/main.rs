//! The program `accelerator`; the program `qdl` under this name is the same.

#[global_allocator]
static ALLOCATOR: program::Allocator = program::Allocator;

fn main() {
    accelerator::entry::main(std::env::args_os())
}
