#!/usr/bin/env bash
# SAMSum end to end, one seed: M-FT, four sampled candidates, then semi-offline RL in several settings beside more M-FT;
# all decoded greedily on validation and test.
#   benchmarks/samsum.sh smollm2|flan-t5 MODEL DATA_DIR OUT [SEED]
# MODEL: SmolLM2-135M-Instruct or flan-t5-small. DATA_DIR: SAMSum as train/validation/test files with the columns dialogue
# and summary. OUT: a new folder; OUT/results holds one result.json for each stage and split, and when each part ended.
# MFT_STEPS, RL_STEPS and ROWS (inputs with candidates) make it smaller, to try it out.
set -euo pipefail
recipe=$1 model=$2 data=$3 out=$4 seed=${5:-0}
run="${PYTHON:-python3} -m semioffline"
here=$(dirname "$0")/..
mkdir -p "$out/results"

shape=(--columns prompt=dialogue completion=summary --max_completion_length 80 --data_dir "$data")
steps=${RL_STEPS:-400}
if [ "$recipe" = smollm2 ]; then
  shape+=(--prompt_template $'Dialogue:\n{prompt}\nSummary:' --max_prompt_length 448 --truncation_side left)
  mft=(--max_steps "${MFT_STEPS:-1000}" --learning_rate 3e-4)
  settings=("10 2e-5" "20 2e-5") batch=16 more=(--learning_rate 2e-5)
else
  shape+=(--prompt_template 'summarize: {prompt}' --max_prompt_length 512)
  mft=(--max_steps "${MFT_STEPS:-480}" --learning_rate 1e-3)
  settings=("10 5e-5" "10 1e-4") batch=32 more=(--learning_rate 5e-5)
fi
rows=${ROWS:-$((steps * batch))}
train=(--seed "$seed" --disable_dropout --bf16 "${BF16:-true}" --warmup_steps 50 --save_strategy no --logging_steps 20
  --eval_limit 16 --disable_tqdm true)

note() { echo "$(date +%s) $*" | tee -a "$out/results/times"; }
evaluate() { # name
  cp "$out/$1/result.json" "$out/results/$1.json"
  for split in validation test; do
    $run evaluate --model "$out/$1/model" "${shape[@]}" --split $split --batch_size 256 ${LIMIT:+--limit "$LIMIT"} \
      --output_dir "$out/$1-$split" > "$out/$1-$split.log" 2>&1
    cp "$out/$1-$split/result.json" "$out/results/$1-$split.json"
  done
  note "$1 evaluated"
}

note start
$run train mft --model "$model" "${shape[@]}" "${train[@]}" --per_device_train_batch_size 32 "${mft[@]}" \
  --output_dir "$out/mft" > "$out/mft.log" 2>&1
note mft trained
evaluate mft &
$run candidates --model "$out/mft/model" --dtype bfloat16 "${shape[@]}" --strategy sampling --top_p 0.95 --num_candidates 4 \
  --seed "$seed" --reward rouge --limit "$rows" --batch_size 512 --shard_size 3200 --output_dir "$out/candidates" \
  > "$out/candidates.log" 2>&1
note candidates written
for setting in "${settings[@]}"; do
  read -r weight rate <<< "$setting"
  name="rl-$weight-$rate"
  ( $run train semi_offline --config "$here/recipes/samsum-$recipe.yaml" --model "$out/mft/model" --data_dir "$data" \
      --train_file "$out/candidates/candidates.jsonl" "${train[@]}" --rl_weight "$weight" --learning_rate "$rate" \
      --per_device_train_batch_size "$batch" --max_steps "$steps" --output_dir "$out/$name" > "$out/$name.log" 2>&1
    note "$name trained"; evaluate "$name" ) &
done
# more M-FT: half as many steps again, since a step of RL takes at most that much longer
( $run train mft --model "$out/mft/model" "${shape[@]}" "${train[@]}" --per_device_train_batch_size "$batch" \
    --max_steps $((steps * 3 / 2)) "${more[@]}" --output_dir "$out/mft-more" > "$out/mft-more.log" 2>&1
  note mft-more trained; evaluate mft-more ) &
wait
note done
