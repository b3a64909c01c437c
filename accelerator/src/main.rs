//! The program `accelerator`; the program `qdl` under this name is the same.

#[global_allocator]
static ALLOCATOR: accelerator::Allocator = accelerator::Allocator;

fn main() {
    accelerator::entry::main(std::env::args_os())
}
