#!/bin/bash
# Two jobs of 56 GiB on one card of 80 GiB:  sbatch two-jobs.sh; sbatch two-jobs.sh
#SBATCH --nodes=1 --ntasks=1 --cpus-per-task=4
#SBATCH --gres=vram:56G
# What does not fit the card is pinned on the host.
#SBATCH --mem=64G
export VRAMKIT_WEIGHT=1    # 2: twice the turns of the other one, if max_weight of the daemon allows it
srun python train.py
