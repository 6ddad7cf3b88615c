infinigen_fuzz(skew infinigen_kv)
