"""What `cargo xtask servers` runs in a server's own environment; see task.py.

inside.py model FOLDER          a Llama of random weights
inside.py sglang FOLDER         what SGLang needs beside its own package
inside.py row                   the places of a core's fields
inside.py record VLLM MODEL     the bytes of a core: registration, first and last output
"""
import subprocess
import sys
import tempfile
from pathlib import Path


def model(folder):
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM
    torch.manual_seed(7)
    config = LlamaConfig(
        vocab_size=4096, hidden_size=256, intermediate_size=512, num_hidden_layers=2,
        num_attention_heads=4, num_key_value_heads=2, head_dim=64, bos_token_id=1,
        max_position_embeddings=2048, eos_token_id=2, pad_token_id=0, initializer_range=0.2,
        tie_word_embeddings=False)
    llama = LlamaForCausalLM(config).to(torch.float32)
    llama.generation_config.eos_token_id = [2, 3]
    llama.generation_config.pad_token_id = 0
    llama.save_pretrained(folder)


# Stands in for SGLang's compiled kernels, which `--attention-backend torch_native` does not call.
KERNELS = '''
import sys
import types
from importlib.machinery import ModuleSpec


class Absent(types.ModuleType):
    __path__ = []

    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return Absent(f"{self.__name__}.{name}")

    def __call__(self, *_, **__):
        raise RuntimeError(f"{self.__name__} is not installed")


class Finder:
    @staticmethod
    def find_spec(name, path=None, target=None):
        return ModuleSpec(name, Finder) if name.startswith("sgl_kernel.") else None

    @staticmethod
    def create_module(spec):
        return Absent(spec.name)

    @staticmethod
    def exec_module(module):
        pass


sys.meta_path.append(Finder)
sys.modules[__name__].__class__ = Absent
'''


def sglang(folder):
    """Installs, one by one, the modules that SGLang's import misses: it asks for CUDA's kernels."""
    kernels = Path(folder) / "sgl_kernel"
    kernels.mkdir(exist_ok=True)
    (kernels / "__init__.py").write_text(KERNELS)
    imports = "import sglang.launch_server, sglang.srt.entrypoints.http_server"
    for _ in range(40):
        tried = subprocess.run([sys.executable, "-c", imports], capture_output=True, text=True)
        if tried.returncode == 0:
            return
        missing = tried.stderr.rpartition("No module named '")[2].split("'")[0].split(".")[0]
        if len(missing) > 40 or "No module named" not in tried.stderr:
            break
        pip = [sys.executable, "-m", "pip", "install", "-q", "--no-deps", "--upgrade", "--target"]
        subprocess.run([*pip, folder, missing], check=True)
    sys.exit(tried.stderr)


def row():
    import vllm
    from vllm.v1.engine import EngineCoreOutput
    names = EngineCoreOutput.__struct_fields__
    counts, minor = names.index("prefill_stats"), vllm.__version__.split(".")[1]
    assert names.index("num_nans_in_logits") == counts + 2, names
    error = f"Some({names.index('error')})" if "error" in names else "None"
    print(f"minor {minor}, fields {len(names)}, counts {counts}, error {error}")


def record(vllm, folder):
    import msgspec
    import zmq
    context, place = zmq.Context(), "ipc://" + tempfile.mkdtemp()
    handshake, given, output = (context.socket(t) for t in (zmq.ROUTER, zmq.ROUTER, zmq.PULL))
    port = handshake.bind_to_random_port("tcp://127.0.0.1")
    given.bind(place + "/in")
    output.bind(place + "/out")
    command = [vllm, "serve", folder, "--headless", "--data-parallel-address", "127.0.0.1",
               "--data-parallel-rpc-port", str(port), "--data-parallel-size-local", "1",
               "--skip-tokenizer-init", "--enforce-eager", "--disable-log-stats",
               "--max-model-len", "256"]

    def receive(socket):
        if not socket.poll(900_000):
            sys.exit("the core sent nothing within 900 s")
        return socket.recv_multipart()

    core = subprocess.Popen(command, stdout=sys.stderr)
    try:
        identity, _ = receive(handshake)
        addresses = {"inputs": [place + "/in"], "outputs": [place + "/out"]}
        init = {"addresses": addresses, "parallel_config": {}}
        handshake.send_multipart([identity, msgspec.msgpack.encode(init)])
        identity, registration = receive(given)
        print("registration", registration.hex())
        params = {"temperature": 0.0, "max_tokens": 3, "_all_stop_token_ids": []}
        request = ["1", [7, 8, 9], None, params, None, 0.0, None, None, None]
        given.send_multipart([identity, b"\0", msgspec.msgpack.encode(request)])
        messages = []
        while not (messages and msgspec.msgpack.decode(messages[-1])[1][0][5] is not None):
            message = receive(output)[0]
            if msgspec.msgpack.decode(message)[1]:
                messages.append(message)
        print("first", messages[0].hex())
        print("last", messages[-1].hex())
    finally:
        core.terminate()
        core.wait(60)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
