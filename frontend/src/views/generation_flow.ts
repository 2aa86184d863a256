/** A generation as the page draws it: the cloud of all tokens read so far, their colours, and the weights of the prompt. */

import type { AnswerAttribution, GeneratedToken, GenerationPrompt } from '../api'
import { boundingBall, scaleToBall, type Arc } from '../cloud/scene'
import { orderColour, rgb, type Theme } from '../palette'

/** `answer` is null until the last token. */
export interface GenerationState { prompt: GenerationPrompt; tokens: GeneratedToken[]; answer: AnswerAttribution | null }

/** The paths of all tokens that the model has read: those of the prompt, and of every new token but the last. */
export const readPaths = ({ prompt, tokens }: GenerationState): number[][][] => [...prompt.paths, ...tokens.filter(({ position }) => position >= prompt.paths.length).map(({ path }) => path)]

/** The labels of these tokens. The path of a token comes with the token after it. */
export const readLabels = ({ prompt, tokens }: GenerationState): string[] => [...prompt.read, ...tokens.slice(0, -1).map(({ shown }) => shown)]

/** Points of every step (step × token × 3), scaled to a ball of radius 1. */
export function cloudOf(state: GenerationState): { points: Float32Array; tokens: number; steps: number } {
  const paths = readPaths(state)
  const steps = state.prompt.steps.length
  const points = new Float32Array(steps * paths.length * 3)
  paths.forEach((path, token) => path.forEach((point, step) => points.set(point, (step * paths.length + token) * 3)))
  const cloud = { points, steps, tokens: paths.length, star: null, share: 0, shares: [], space: 'sphere', axes: 'all' }
  return { points: scaleToBall(cloud, boundingBall(cloud, () => true, paths.length)), tokens: paths.length, steps }
}

/** The prompt in grey, new tokens in the colours of their order. */
export function tokenColours(nPrompt: number, tokens: number, theme: Theme): Uint8Array {
  const colours = new Uint8Array(tokens * 3)
  for (let token = 0; token < tokens; token++) colours.set(token < nPrompt ? rgb(theme.muted) : orderColour((token - nPrompt) / Math.max(1, tokens - nPrompt - 1)), token * 3)
  return colours
}

/** Arcs from the predicting token to the tokens that its heads read most. Tokens of another text have no place in the cloud. */
export function sourceArcs(token: GeneratedToken): Arc[] {
  const own = token.sources.filter(({ cross, position }) => !cross && position !== token.position)
  const largest = Math.max(...own.map(({ value }) => Math.abs(value)), 1e-9)
  return own.map(({ position, value }) => ({ from: token.position, to: position, weight: value / largest }))
}

/** The contributions of prompt tokens to a new token, or to the whole answer so far, from −1 to 1. */
export function promptWeights({ prompt, tokens }: GenerationState, selected: number | null): number[] {
  const rows = selected === null ? tokens : tokens.slice(selected, selected + 1)
  const totals = prompt.tokens.map((_, index) => rows.reduce((sum, { by_prompt_token }) => sum + (by_prompt_token[index] ?? 0), 0))
  const largest = Math.max(...totals.map(Math.abs), 1e-9)
  return totals.map((total) => total / largest)
}

/** A signed number with one decimal. */
export const signed = (value: number): string => `${value < 0 ? '−' : '+'}${Math.abs(value).toFixed(1)}`
