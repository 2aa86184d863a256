/** Prompts to try, as links with what to look for. Each describes what the default model does. */

import { DEFAULT_LINK, formatLink, type Link } from './link'
import type { MessageKey } from './messages'

export interface Prompt { name: MessageKey; look: MessageKey; link: Partial<Link> }

const REPEATED_NAME = 'Mr. Brown met Miss Green in the garden. They talked for an hour. Then Mr. Brown said good-bye to Miss'

export const PROMPTS: Prompt[] = [
  { name: 'prompt_river', look: 'prompt_river_look', link: {} },
  { name: 'prompt_name', look: 'prompt_name_look', link: { text: REPEATED_NAME, layer: 4, head: 3, token: 36 } },
  { name: 'prompt_ablated', look: 'prompt_ablated_look', link: { text: REPEATED_NAME, layer: 4, head: 3, edits: [{ layer: 4, head: 3, part: 'both', operation: 'ablate' }] } },
  { name: 'prompt_words', look: 'prompt_words_look', link: { text: 'The keys to the cabinet are on the table. The keys to the cabinet are on the', view: 'readout' } },
  { name: 'prompt_untrained', look: 'prompt_untrained_look', link: { compareWith: 'untrained', view: 'compare' } },
]

/** The address of a prompt, in the language of the page. */
export const promptAddress = (prompt: Prompt, language: string): string => `#${formatLink({ ...DEFAULT_LINK, language, ...prompt.link }) || 'step=0'}`
